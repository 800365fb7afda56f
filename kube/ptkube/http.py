"""HTTP to one API server over the standard library: pooled connections, TLS, retries, streams.

The one idea: a request that the server cannot have acted on (connection refused) is always tried again; one that it
may have acted on only if repeating it cannot do harm. Streams (watch, logs) have their own connection and can be cut
from another thread by `close`. Left out: HTTP/2, SOCKS proxies.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import socket
import ssl
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from ptkube.credentials import Credentials
from ptkube.errors import ApiError, ConfigError, Unreachable, from_response
from ptkube.kubeconfig import Access

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
_BACKOFF_S = (0.1, 0.4)  # between tries when the connection fails
_THROTTLED_TRIES = 5  # 429 with Retry-After: the server did nothing yet, so every verb may be repeated
_MAX_RETRY_AFTER_S = 10.0
_IDLE_CONNECTIONS = 8
_USER_AGENT = "posttrain"


class Transport:
    """Sends requests for one `Access`; safe to share between threads."""

    def __init__(self, access: Access) -> None:
        url = urlsplit(access.server)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(f"{access.source}: server '{access.server}' is not an http(s) address")
        self._access = access
        self._url = url
        self._host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._credentials = Credentials(access)
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._streams: set[socket.socket] = set()
        self._tls: ssl.SSLContext | None = None
        self._tls_cert: str | None = None
        self._closed = False
        self._proxy = _proxy_for(access, url.scheme, self._host)

    def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        content_type: str = "application/json",
        *,
        idempotent: bool = False,
        accept: str = "application/json",
    ) -> bytes:
        """Return the body of the response; raise the ApiError of a response of 400 or more."""
        renewed = False
        throttled = 0
        while True:
            response, payload = self._exchange(method, target, body, content_type, accept, idempotent)
            if response.status == 401 and self._credentials.renewable and not renewed:
                renewed = True
                self._credentials.forget()
            elif response.status == 429 and response.headers.get("Retry-After") and throttled < _THROTTLED_TRIES:
                throttled += 1
                time.sleep(_retry_after_s(response))
            elif response.status >= 400:
                raise from_response(response.status, payload)
            else:
                return payload

    def stream(self, target: str, *, silence_s: float, accept: str = "application/json") -> Iterator[bytes]:
        """Chunks of a GET as they arrive. Ends when the server ends, or after `silence_s` without a byte."""
        connection = self._connect_with_retry()
        sock: socket.socket = connection.sock  # http.client drops its own reference when the answer ends the connection
        with self._lock:
            self._streams.add(sock)
        try:
            response = self._send(connection, "GET", target, None, "", accept)
            if response.status >= 400:
                raise from_response(response.status, response.read())
            sock.settimeout(silence_s)
            while chunk := response.read1(65536):
                yield chunk
        except TimeoutError:
            return
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            # ValueError and AttributeError: http.client on a response that `close` cut under its feet
            raise self._unreachable(error) from error
        finally:
            with self._lock:
                self._streams.discard(sock)
            connection.close()

    def close(self) -> None:
        """Cut every stream and refuse new requests. Threads blocked in `stream` return or raise Unreachable."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            streams = list(self._streams)
        for connection in idle:
            connection.close()
        for sock in streams:
            with contextlib.suppress(OSError):  # already gone, which is what was wanted
                sock.shutdown(socket.SHUT_RDWR)

    def _exchange(
        self, method: str, target: str, body: bytes | None, content_type: str, accept: str, idempotent: bool
    ) -> tuple[http.client.HTTPResponse, bytes]:
        for pause_s in (*_BACKOFF_S, None):
            connection = self._take() or self._connect_with_retry()
            try:
                response = self._send(connection, method, target, body, content_type, accept)
                payload = response.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if not idempotent or pause_s is None or self._closed:
                    raise self._unreachable(error) from error
                time.sleep(pause_s)
                continue
            self._give_back(connection, response)
            return response, payload
        raise AssertionError("unreachable: the last try returns or raises")

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        body: bytes | None,
        content_type: str,
        accept: str,
    ) -> http.client.HTTPResponse:
        headers = {"Accept": accept, "User-Agent": _USER_AGENT, **self._credentials.headers()}
        if body is not None:
            headers["Content-Type"] = content_type
        connection.request(method, self._url.path.rstrip("/") + target, body=body, headers=headers)
        return connection.getresponse()

    def _take(self) -> http.client.HTTPConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            # A readable idle socket means the server closed it (or broke protocol): never send on it.
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()

    def _give_back(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        if response.will_close:
            connection.close()
            return
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def _connect_with_retry(self) -> http.client.HTTPConnection:
        for pause_s in (*_BACKOFF_S, None):
            if self._closed:
                raise Unreachable(0, "ClientClosed", "the Kubernetes client has been closed")
            connection = self._new_connection()
            try:
                connection.connect()
                assert connection.sock is not None
                connection.sock.settimeout(READ_TIMEOUT_S)
                return connection
            except OSError as error:
                connection.close()
                if pause_s is None or isinstance(error, ssl.SSLError | socket.gaierror):
                    raise self._unreachable(error) from error
                time.sleep(pause_s)
        raise AssertionError("unreachable: the last try returns or raises")

    def _new_connection(self) -> http.client.HTTPConnection:
        host, port = self._proxy[0] if self._proxy else (self._host, self._port)
        connection: http.client.HTTPConnection
        if self._url.scheme == "https":
            connection = _TlsConnection(
                host,
                port,
                timeout=CONNECT_TIMEOUT_S,
                context=self._context(),
                server_name=self._access.tls_server_name or self._host,
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=CONNECT_TIMEOUT_S)
        if self._proxy:
            connection.set_tunnel(self._host, self._port, headers=self._proxy[1])
        return connection

    def _context(self) -> ssl.SSLContext:
        self._credentials.headers()  # an exec plugin may hand out the certificate
        with self._lock:
            if self._tls is None or self._tls_cert != self._credentials.cert_pem:
                self._tls = _tls_context(self._access, self._credentials)
                self._tls_cert = self._credentials.cert_pem
            return self._tls

    def _unreachable(self, error: Exception) -> ApiError:
        if self._closed:
            return Unreachable(0, "ClientClosed", "the Kubernetes client has been closed")
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        where = f" (context '{self._access.context}' of {self._access.source})" if self._access.context else ""
        return Unreachable(
            0,
            "Unreachable",
            f"cannot reach the Kubernetes API at {self._access.server}{where}: {said}\n"
            "hint: is the cluster up, and is this the context you mean? `ptctl local status` tells for a local one",
        )


class _TlsConnection(http.client.HTTPSConnection):
    """HTTPS whose certificate may be checked against another name than the one dialled (tls-server-name)."""

    def __init__(self, host: str, port: int, *, timeout: float, context: ssl.SSLContext, server_name: str) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._tls_context = context
        self._server_name = server_name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls_context.wrap_socket(self.sock, server_hostname=self._server_name)


def _tls_context(access: Access, credentials: Credentials) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=access.ca_pem)
        if not access.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if credentials.cert_pem:
            # OpenSSL reads client certificates from files only; this one lives as long as the call.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(credentials.cert_pem + "\n" + (credentials.key_pem or ""))
                file.flush()
                context.load_cert_chain(file.name)
    except ssl.SSLError as error:
        raise ConfigError(f"{access.source}: certificate data is not usable: {error}") from error
    return context


def _proxy_for(access: Access, scheme: str, host: str) -> tuple[tuple[str, int], dict[str, str]] | None:
    """Return the proxy of the kubeconfig, else of the environment, as (address, CONNECT headers)."""
    address = access.proxy_url
    if not address and any(os.environ.get(name) for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY")):
        from urllib.request import getproxies, proxy_bypass

        loopback = host in ("localhost", "::1") or host.startswith("127.")
        address = None if loopback or proxy_bypass(host) else getproxies().get(scheme)
    if not address:
        return None
    url = urlsplit(address if "//" in address else f"http://{address}")
    if url.scheme != "http" or not url.hostname:
        raise ConfigError(f"proxy '{address}' is not supported; accepted: http://[user:password@]host:port")
    headers = {}
    if url.username:
        pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
        headers["Proxy-Authorization"] = "Basic " + b64encode(pair.encode()).decode()
    return (url.hostname, url.port or 80), headers


def _retry_after_s(response: http.client.HTTPResponse) -> float:
    try:
        return min(float(response.headers["Retry-After"]), _MAX_RETRY_AFTER_S)
    except ValueError:
        return 1.0
