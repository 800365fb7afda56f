"""What the doctor's pods run, with the trainer's image. Its text is their program, so it imports none of ours.

Arguments: the other pod's host:port, its index, and gs://BUCKET/PATH or nothing. Pod 1 answers; pod 0 prints what is
wrong as JSON, empty texts where all is well.
"""

import json
import os
import socket
import sys
import time

WAIT_S = 90.0


def reach(host: str, port: int) -> str:
    """Return why the other pod cannot be reached by its name; empty if it can."""
    until = time.monotonic() + WAIT_S
    problem = ""
    while time.monotonic() < until:
        try:
            with socket.create_connection((host, port), timeout=5):
                return ""
        except socket.gaierror as error:
            problem = f"the name {host} is not resolved: {error.strerror}"
        except OSError as error:
            problem = f"{host}:{port} is not reached: {error.strerror or error}"
        time.sleep(0.5)
    return problem


def answer(port: int) -> None:
    """Accept one connection."""
    with socket.create_server(("", port)) as server:
        server.settimeout(WAIT_S)
        server.accept()[0].close()


def use_bucket(uri: str) -> str:
    """Return why an object cannot be written, read and deleted below a URI; empty if it can."""
    from google.cloud import storage

    try:
        client = storage.Client(project=os.environ.get("GOOGLE_CLOUD_PROJECT", "none"))
        bucket, _, prefix = uri.removeprefix("gs://").partition("/")
        name = f"{prefix.rstrip('/')}/.posttrain-doctor-{socket.gethostname()}".lstrip("/")
        blob = client.bucket(bucket).blob(name)
        blob.upload_from_string(b"doctor", timeout=20)
        blob.reload(timeout=20)
        blob.download_as_bytes(timeout=20)
        blob.delete(timeout=20)
    except Exception as error:  # whatever it is, it is what a trainer would meet
        return " ".join(str(error).split())[:300] or type(error).__name__
    return ""


def main() -> None:
    """Play the part of this pod."""
    peer, index, bucket = sys.argv[1:4]
    host, _, port = peer.rpartition(":")
    if index == "1":
        answer(int(port))
        return
    print(json.dumps({"dns": reach(host, int(port)), "bucket": use_bucket(bucket) if bucket else ""}))


if __name__ == "__main__":
    main()
