"""HTTP to one API server through the official client's connections: which request may be sent again, and streams.

The one idea: a request that the server cannot have acted on (connection refused) is always tried again; one that it
may have acted on only if repeating it cannot do harm. That is why urllib3's own retries are off. Streams (watch, logs)
can be cut from another thread by `close`.
"""

import contextlib
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, Retry, Timeout
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    InsecureRequestWarning,
    NameResolutionError,
    ProxyError,
    ReadTimeoutError,
    SSLError,
    URLSchemeUnknown,
)

from ptkube import kubeconfig
from ptkube.errors import CLIENT_CLOSED, ApiError, ConfigError, Unreachable, from_response
from ptkube.kubeconfig import Access
from ptkube.official_client import ApiClient
from ptkube.server_clock import ServerClock

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
_PAUSES_S = (0.1, 0.4)  # between tries when the connection fails
_THROTTLED_TRIES = 5  # 429 with Retry-After: the server did nothing yet, so every verb may be repeated
_MAX_RETRY_AFTER_S = 10.0
_POOL_SIZE = 32  # connections kept; urllib3 warns of each that it has to drop
_USER_AGENT = "posttrain"
_RETRIES = Retry(total=False)  # urllib3 would make one for each request
_FINAL = (NameResolutionError, SSLError)  # the next try would end the same way
_STREAM_ENDS = (HTTPError, OSError, ValueError, AttributeError)  # the last two: http.client, cut by `close`


class Transport:
    """Sends requests for one `Access`; safe to share between threads."""

    def __init__(self, access: Access) -> None:
        self._lock = threading.Lock()
        self._renewing = threading.Lock()  # of its own: a login in a browser must not hold up `close`
        self._streams: set[BaseHTTPResponse] = set()
        self._closed = False
        self.clock = ServerClock()
        self._connect(access)

    def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        content_type: str = "application/json",
        *,
        idempotent: bool = False,
    ) -> bytes:
        """Return the body of the response; raise the ApiError of a response of 400 or more."""
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        return self._answer(method, target, headers, idempotent=idempotent, body=body).data

    def stream(self, target: str, *, silence_s: float, accept: str = "application/json") -> Iterator[bytes]:
        """Chunks of a GET as they arrive. Ends when the server ends, or after `silence_s` without a byte."""
        response = self._answer(
            "GET", target, {"Accept": accept}, idempotent=True, read_s=silence_s, preload_content=False
        )
        with self._lock:
            self._streams.add(response)
        try:
            while not self._closed and (chunk := response.read1(65536)):
                yield chunk
        except ReadTimeoutError:
            return
        except _STREAM_ENDS as error:
            raise self._unreachable(error) from error
        finally:
            with self._lock:
                self._streams.discard(response)
            response.close()

    def close(self) -> None:
        """Cut every stream and refuse new requests. Threads blocked in `stream` return or raise Unreachable."""
        with self._lock:
            self._closed = True
            streams = list(self._streams)
        for response in streams:
            with contextlib.suppress(OSError, ValueError, RuntimeError):  # already gone, which is what was wanted
                response.shutdown()
        self._api.close()

    def _connect(self, access: Access) -> None:
        self.access = access
        configuration = access.configuration
        configuration.connection_pool_maxsize = _POOL_SIZE
        if not configuration.verify_ssl:  # the kubeconfig says so: nothing new for the user
            warnings.simplefilter("ignore", InsecureRequestWarning)
        try:
            self._api = ApiClient(configuration)
            pools = self._api.rest_client.pool_manager
            if access.tls is not None:  # made once: urllib3 would read all certificates at every new connection
                pools.connection_pool_kw["ssl_context"] = access.tls
            self._pool: HTTPConnectionPool = pools.connection_from_url(access.server)
        except URLSchemeUnknown as error:
            raise ConfigError(
                f"{access.source}: proxy '{configuration.proxy}' is not supported; "
                "accepted: http://[user:password@]host:port"
            ) from error
        url = urlsplit(access.server)
        through_proxy = self._pool.proxy is not None and url.scheme == "http"
        self._prefix = access.server if through_proxy else url.path.rstrip("/")
        self._headers = {"User-Agent": _USER_AGENT}
        if access.impersonate:
            self._headers["Impersonate-User"] = access.impersonate

    def _answer(
        self, method: str, target: str, headers: dict[str, str], *, idempotent: bool, **options: Any
    ) -> BaseHTTPResponse:
        """Return a response below 400, after new credentials or a pause where the server asks for them."""
        renewed = False
        throttled = 0
        while True:
            access = self.access
            response = self._exchange(method, target, headers, idempotent, **options)
            payload = response.data if response.status >= 400 else b""
            if response.status == 401 and not renewed and self._renew(access):
                renewed = True
            elif response.status == 429 and response.headers.get("Retry-After") and throttled < _THROTTLED_TRIES:
                throttled += 1
                time.sleep(_retry_after_s(response))
            elif response.status >= 400:
                raise from_response(response.status, payload)
            else:
                return response

    def _exchange(
        self,
        method: str,
        target: str,
        headers: dict[str, str],
        idempotent: bool,
        *,
        body: bytes | None = None,
        read_s: float = READ_TIMEOUT_S,
        preload_content: bool = True,
    ) -> BaseHTTPResponse:
        for pause_s in (*_PAUSES_S, None):
            if self._closed:
                raise _client_closed()
            began = time.monotonic()
            try:
                response: BaseHTTPResponse = self._pool.urlopen(
                    method,
                    self._prefix + target,
                    body=body,
                    headers={**headers, **self._headers, **self._authorization()},
                    timeout=Timeout(connect=CONNECT_TIMEOUT_S, read=read_s),
                    retries=_RETRIES,
                    assert_same_host=False,
                    preload_content=preload_content,
                )
                self.clock.hear(response.headers.get("Date"), began)
                return response
            except HTTPError as error:
                if pause_s is None or isinstance(error, _FINAL) or not (idempotent or _is_unsent(error)):
                    raise self._unreachable(error) from error
                time.sleep(pause_s)
        raise AssertionError("unreachable: the last try returns or raises")

    def _authorization(self) -> dict[str, str]:
        access = self.access
        if time.time() >= access.expires:
            self._renew(access)
        token = self.access.authorization
        return {"Authorization": token} if token else {}

    def _renew(self, before: Access) -> bool:
        """Read the credentials of this context anew; return False if they are what they were."""
        with self._renewing:
            if self.access is not before:
                return True  # by another thread
            after = kubeconfig.reload(before)
            if after.server != before.server:
                return False  # another cluster under the old name: not where our objects were read
            if after.cert_pem == before.cert_pem:
                self.access = after
            else:
                self._connect(after)
            return (after.authorization, after.cert_pem) != (before.authorization, before.cert_pem)

    def _unreachable(self, error: Exception) -> ApiError:
        if self._closed:
            return _client_closed()
        access = self.access
        where = f" (context '{access.context}' of {access.source})" if access.context else ""
        return Unreachable(
            0,
            "Unreachable",
            f"cannot reach the Kubernetes API at {access.server}{where}: {_cause(error)}\n"
            "hint: is the cluster up, and is this the context you mean? `ptctl local status` tells for a local one",
        )


def _client_closed() -> ApiError:
    return Unreachable(0, CLIENT_CLOSED, "the Kubernetes client has been closed")


def _is_unsent(error: Exception) -> bool:
    """Return True if no connection came about, so the server cannot have acted."""
    return isinstance(error.original_error if isinstance(error, ProxyError) else error, ConnectTimeoutError)


def _cause(error: BaseException) -> str:
    """Return the words of the operating system, or of TLS, from under urllib3's wrapping."""
    inner = error.__cause__ or next((each for each in error.args if isinstance(each, Exception)), None)
    return _cause(inner) if inner else str(getattr(error, "strerror", None) or error or type(error).__name__)


def _retry_after_s(response: BaseHTTPResponse) -> float:
    try:
        return min(float(response.headers["Retry-After"]), _MAX_RETRY_AFTER_S)
    except ValueError:
        return 1.0
