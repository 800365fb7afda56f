"""HTTP client of judges, teachers and MCP servers: one deadline for a whole reply, and no redirect with the key."""

import http.client
import io
import socket
import time
import urllib.error
import urllib.request
from typing import Any

HttpError = http.client.HTTPException
"""What a broken reply raises besides OSError."""
MAX_REPLY_BYTES = 4 << 20
"""Bytes."""
CONNECT_S = 10.0
"""Longest time until a connection stands: a machine that is gone answers nothing, and another one may."""
PROBES = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds of silence before the kernel asks whether the peer's machine is there, between such questions, and how many:
a machine that goes away while it computes an answer breaks no connection by itself."""


def build_opener() -> urllib.request.OpenerDirector:
    """Return the opener of requests; its timeout covers the whole reply."""
    return urllib.request.build_opener(_NoRedirect, _Http, _Https)


def read(response: Any, max_bytes: int = MAX_REPLY_BYTES) -> bytes:
    """Return the body of a reply; raise ValueError if it exceeds the limit."""
    content: bytes = response.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"the reply has more than {max_bytes} bytes")
    return content


def body_excerpt(error: urllib.error.HTTPError) -> str:
    """Return the beginning of an error's body, or its redirect target; empty if nothing arrives."""
    if "Location" in error.headers:
        return f"to {error.headers['Location']}, which is not followed: it would receive the key"
    try:
        return error.read(300).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""


def retry_after(error: urllib.error.HTTPError) -> float:
    """Return the delay in seconds that the service asks for, or 0."""
    try:
        return max(0.0, float(error.headers.get("Retry-After") or 0.0))
    except ValueError:
        return 0.0  # a date: our own backoff is good enough


class _DeadlineResponse(http.client.HTTPResponse):
    """A reply that must arrive completely within the connection's timeout.

    By default the timeout applies to each read, and a service that sends a byte a second would never time out.
    """

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_DeadlineReader(self.fp.detach(), sock))


class _DeadlineReader(io.RawIOBase):
    """Reads from a socket until its timeout, counted from here on."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw, self._sock = raw, sock
        self._deadline = time.monotonic() + (sock.gettimeout() or 0.0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the reply took too long")
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Connecting(http.client.HTTPConnection):
    """Connects soon or not at all, and learns of a peer whose machine is gone."""

    response_class = _DeadlineResponse

    def connect(self) -> None:
        limit_s = self.timeout
        self.timeout = CONNECT_S if limit_s is None else min(limit_s, CONNECT_S)
        try:
            super().connect()
        finally:
            self.timeout = limit_s
        self.sock.settimeout(limit_s)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in PROBES.items():
            if hasattr(socket, option):  # Linux has all of them
                self.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class _HttpsConnection(_Connecting, http.client.HTTPSConnection):
    pass


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connecting, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HttpsConnection, req)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would carry the key to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None
