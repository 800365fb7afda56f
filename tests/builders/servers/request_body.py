"""The body of a request, also of one that a client sends in chunks, which http.server leaves to its handlers."""

from http.server import BaseHTTPRequestHandler


def read(request: BaseHTTPRequestHandler) -> bytes:
    """All of it."""
    if request.headers.get("Transfer-Encoding", "") != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    whole = b""
    while size := int(request.rfile.readline().strip(), 16):
        whole += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return whole
