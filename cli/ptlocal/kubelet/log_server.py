"""The kubelet's own endpoint, so that `kubectl logs` works with a real API server, which fetches logs from the kubelet.

The embedded API server reads the log files itself and does not need it. Bound to loopback; the certificate is our own
and, as usual for kubelets, not verified by the API server; whoever can connect may read.
"""

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ptkube.resources import Manifest
from ptlocal.apiserver.errors import StatusError
from ptlocal.apiserver.http.pod_logs import LogReader, is_over, log_request
from ptlocal.apiserver.http.tls import Credentials
from ptlocal.paths import Layout

_POLL_S = 0.2

Find = Callable[[str, str], Manifest | None]  # namespace, name -> pod


def serve_logs(layout: Layout, find: Find) -> int:
    """Serve logs in the background; return the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(layout, find))
    server.daemon_threads = True
    server.socket = Credentials(layout.pki).context().wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, name="kubelet-logs", daemon=True).start()
    return int(server.server_address[1])


def _handler(layout: Layout, find: Find) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            return  # the API server logs its requests

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            parts = url.path.strip("/").split("/")
            if len(parts) != 4 or parts[0] != "containerLogs":
                self.send_error(404)
                return
            _, namespace, name, container = parts
            pod = find(namespace, name)
            if pod is None:
                self.send_error(404, f"pod {name} is not here")
                return
            try:
                request = log_request(pod, {**dict(parse_qsl(url.query)), "container": container})
            except StatusError as error:
                self._answer(error.code, error.message.encode())
                return
            reader = LogReader(layout, pod, request)
            self._answer(200, reader.first())
            while request.follow:
                over = is_over(find(namespace, name), request)
                data = reader.more()
                if data:
                    self.wfile.write(data)
                elif over:
                    return
                else:
                    time.sleep(_POLL_S)

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(body)

    return Handler
