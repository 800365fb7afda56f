"""HTTP as a judge is asked: a reply is late as a whole, has an end, and no redirect carries the key elsewhere."""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.error
import urllib.request
from typing import Any

LONGEST_REPLY = 4 << 20
"""Bytes."""


def opener() -> urllib.request.OpenerDirector:
    """What requests are opened with; its timeout is one of the whole reply."""
    return urllib.request.build_opener(_NoRedirect, _Http, _Https)


def read(response: Any) -> bytes:
    """All of a reply; raises ValueError where it does not end."""
    content: bytes = response.read(LONGEST_REPLY + 1)
    if len(content) > LONGEST_REPLY:
        raise ValueError(f"the reply has more than {LONGEST_REPLY} bytes")
    return content


def beginning(error: urllib.error.HTTPError) -> str:
    """Of what came with it, or where it points to; empty where nothing comes."""
    if "Location" in error.headers:
        return f"to {error.headers['Location']}, which is not followed because the key would go along"
    try:
        return error.read(300).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""


def retry_after(error: urllib.error.HTTPError) -> float:
    """Seconds that the service asks for; 0 where it asks for none."""
    try:
        return max(0.0, float(error.headers.get("Retry-After") or 0.0))
    except ValueError:
        return 0.0  # a date: our own pause is good enough


class _Hasty(http.client.HTTPResponse):
    """A reply all of which, from its first line on, must be there within the connection's timeout. As it comes, the
    timeout would be one of each piece, and a service that sends a byte a second would never be late."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Until(self.fp.detach(), sock))


class _Until(io.RawIOBase):
    """What a socket receives until its timeout, counted from here on."""

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
    response_class = _Hasty


class _HttpsConnection(http.client.HTTPSConnection):
    response_class = _Hasty


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HttpConnection, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HttpsConnection, req)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None
