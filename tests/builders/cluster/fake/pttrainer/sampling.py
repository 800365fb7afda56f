"""`python -m pttrainer sampler`: answers with its index and process id; and the trainer's requests to it."""

import os
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def serve() -> None:
    """Answer whoever shows the job's token, until SIGTERM."""
    flags = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    answer = f"{flags['--index']} {os.getpid()}".encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.headers["Authorization"] == f"Bearer {_token()}"
            self.send_response(200 if is_known else 403)
            self.end_headers()
            self.wfile.write(answer if is_known else b"")

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    ThreadingHTTPServer(("127.0.0.1", int(flags["--port"])), Handler).serve_forever()


def sample() -> str:
    """Return the answers of the samplers that can be reached, a line each."""
    addresses = os.environ.get("POSTTRAIN_SAMPLERS", "")
    return "".join(map(_sample, addresses.split(","))) if addresses else ""


def _sample(address: str) -> str:
    request = urllib.request.Request(f"http://{address}/", headers={"Authorization": f"Bearer {_token()}"})
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return f"{response.read().decode()}\n"
    except urllib.error.HTTPError as error:
        return f"refused {error.code}\n"
    except OSError:
        return ""


def _token() -> str:
    return os.environ["POSTTRAIN_SAMPLER_TOKEN"] or sys.exit("no token")
