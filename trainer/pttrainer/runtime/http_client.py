"""HTTP client of judges and MCP servers: one deadline for a whole reply, a size limit, no redirect with the key."""

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


def build_opener() -> urllib.request.OpenerDirector:
    """Return the opener of requests; its timeout covers the whole reply."""
    return urllib.request.build_opener(_NoRedirect, _Http, _Https)


def read(response: Any) -> bytes:
    """Return the body of a reply; raise ValueError if it exceeds the limit."""
    content: bytes = response.read(MAX_REPLY_BYTES + 1)
    if len(content) > MAX_REPLY_BYTES:
        raise ValueError(f"the reply has more than {MAX_REPLY_BYTES} bytes")
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


class _HttpConnection(http.client.HTTPConnection):
    response_class = _DeadlineResponse


class _HttpsConnection(http.client.HTTPSConnection):
    response_class = _DeadlineResponse


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HttpConnection, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HttpsConnection, req)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would carry the key to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None
