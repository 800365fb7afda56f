"""The HTTP runtime of a sandbox, as Agent Sandbox's python-runtime-sandbox serves it on port 8888.

    POST /upload    a form with one file, written to the directory in which commands run
    POST /execute   {command}, split as a shell does   →   {stdout, stderr, exit_code}

Everything by one deadline, whatever the other side does: it runs programs that a model wrote.
"""

import http.client
import json
import secrets
import socket
import threading
import time
from contextlib import suppress
from typing import Any, NamedTuple

LONGEST_REPLY = 32 << 20
"""Bytes."""
_EXCERPT = 300


class SandboxLost(Exception):
    """The sandbox did not answer as its runtime does; the message says how."""


class Execution(NamedTuple):
    """What a command printed, and its exit code."""

    stdout: str
    stderr: str
    exit_code: int


def upload(address: tuple[str, int], name: str, content: bytes, limit_s: float) -> None:
    """Write a file into the sandbox. Raises SandboxLost."""
    mark = secrets.token_hex(16)
    head = (
        f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    body = head.encode() + content + f"\r\n--{mark}--\r\n".encode()
    _post(address, "/upload", body, f"multipart/form-data; boundary={mark}", limit_s)


def execute(address: tuple[str, int], command: str, limit_s: float) -> Execution:
    """Run a command and return its end. Raises SandboxLost."""
    reply = _post(address, "/execute", json.dumps({"command": command}).encode(), "application/json", limit_s)
    try:
        document = json.loads(reply)
        return Execution(str(document["stdout"]), str(document["stderr"]), int(document["exit_code"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SandboxLost(f"/execute is answered with {_short(reply)}") from error


def _post(address: tuple[str, int], path: str, body: bytes, content_type: str, limit_s: float) -> bytes:
    deadline = time.monotonic() + limit_s
    connection = http.client.HTTPConnection(*address, timeout=limit_s)
    try:
        connection.connect()
        end = threading.Timer(max(0.0, deadline - time.monotonic()), _shut, (connection.sock,))
        end.daemon = True
        end.start()
        try:
            connection.request("POST", path, body, {"Content-Type": content_type})
            response = connection.getresponse()
            reply = response.read(LONGEST_REPLY + 1)
        finally:
            end.cancel()
    except (OSError, http.client.HTTPException) as error:
        late = (
            f"no answer within {limit_s:.0f} s" if time.monotonic() >= deadline else f"{type(error).__name__}: {error}"
        )
        raise SandboxLost(f"{path}: {late}") from error
    finally:
        connection.close()
    if time.monotonic() >= deadline:
        raise SandboxLost(f"{path}: no answer within {limit_s:.0f} s")
    if response.status != http.client.OK or len(reply) > LONGEST_REPLY:
        raise SandboxLost(f"{path}: {response.status} {response.reason}: {_short(reply)}")
    return reply


def _shut(connected: Any) -> None:
    """End a connection that another thread waits on."""
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _short(content: bytes) -> str:
    return " ".join(content[:_EXCERPT].decode(errors="replace").split())
