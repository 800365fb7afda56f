"""One sampler, as the trainer reaches it: requests over HTTP, and what it was last known to hold.

    GET  /health                         200 while it takes requests (no token: the pod's readiness probe)
    GET  /status                         its instance, its versions, its model's shapes
    POST /weights/begin, tensors, finish a version of the weights; 409 if what it counts on is not there
    POST /generate                       completions; while it samples, a beat every few seconds
    POST /forget                         drop kept prompts
    POST /drain                          finish what is in progress and take nothing more

All but the first need the job's token. A sampler that says nothing for `SILENT_S` is away, even if its connection is
open: its machine may be gone. One that beats without sampling anything for `stalled_s` is away, too.
"""

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pttrainer.errors import ConfigError
from pttrainer.rollout.disaggregated.in_flight import remote_calls
from pttrainer.rollout.disaggregated.in_flight.remote_calls import Continuation, Continued
from pttrainer.rollout.disaggregated.separate import messages
from pttrainer.rollout.disaggregated.separate.messages import MessageError, Request
from pttrainer.rollout.disaggregated.weight_sync import Key
from pttrainer.rollout.engine import Completions

SILENT_S = 60.0
"""Longest silence of a sampler that is up; it beats every `BEAT_S` (`sampler_server`)."""
CONNECT_S = 10.0
TOKEN_ENV, SAMPLERS_ENV = "POSTTRAIN_SAMPLER_TOKEN", "POSTTRAIN_SAMPLERS"
BEAT, REPLY, FAILURE = b"b", b"r", b"e"
FRAME = struct.Struct("!cQ")
"""A kind and a number: of a beat, how often anything was sampled so far; else, the bytes that follow."""


class SamplerAway(Exception):
    """The sampler cannot be reached, or does not take requests now."""


class SamplerFailed(Exception):
    """The sampler answered that sampling failed."""


class Conflict(Exception):
    """The sampler does not hold what the request counts on."""


class SamplerClient:
    """A sampler at `address` (host:port). shapes: digest of the job's model, which the sampler's must equal."""

    def __init__(self, address: str, token: str, shapes: str, stalled_s: float, silent_s: float = SILENT_S) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"environment: {SAMPLERS_ENV}: {address!r}: accepted: host:port, separated by commas")
        self.name, self._host, self._port = address, host, int(port)
        self._token, self._shapes, self._stalled_s, self._silent_s = token, shapes, stalled_s, silent_s
        self.instance = ""
        self.newest: str | None = None
        self.held: set[str] = set()
        self.has_static = False
        self._lock = threading.Lock()
        self._open: set[http.client.HTTPConnection] = set()
        self._is_closed = False

    def refresh(self) -> None:
        """Ask what it holds. Raises SamplerAway, or ConfigError if it is another job's."""
        status = self._json("GET", "/status")
        if status["shapes"] != self._shapes:
            raise ConfigError(f"sampler {self.name}: has another model than this job; hint: start it with the same job")
        if status["draining"]:
            raise SamplerAway("it is draining")
        self.instance, self.newest, self.has_static = status["instance"], status["newest"], status["static"]
        self.held = set(status["versions"])

    def begin(self, version: str, base: str | None, keep: Sequence[str]) -> None:
        """Begin a version. Raises SamplerAway or Conflict."""
        self._json("POST", "/weights/begin", [json.dumps({"version": version, "base": base, "keep": keep}).encode()])
        self.newest, self.held = None, self.held & set(keep)

    def tensors(self, body: Sequence[bytes | memoryview]) -> None:
        """Send weights. Raises SamplerAway or Conflict."""
        self._json("POST", "/weights/tensors", body)

    def finish(self, version: str, sums: Mapping[Key, int]) -> None:
        """End a version; the sampler compares it with the checksums. Raises SamplerAway or Conflict."""
        text = json.dumps({"version": version, "sums": [[*key, value] for key, value in sums.items()]})
        self._stream("/weights/finish", [text.encode()], lambda: None)
        self.newest, self.has_static = version, True
        self.held.add(version)

    def generate(self, request: Request | Continuation, progress: Callable[[], None]) -> Completions | Continued:
        """Return completions, or what was added to samples; `progress` is called while it samples.

        Raises SamplerAway, SamplerFailed or Conflict.
        """
        try:
            if isinstance(request, Continuation):
                body = self._stream("/go_on", remote_calls.encode_request(request), progress)
                return remote_calls.decode_reply(messages.decode(body))
            body = self._stream("/generate", messages.encode_request(request), progress)
            return messages.decode_completions(messages.decode(body))
        except MessageError as error:
            raise SamplerAway(f"its reply {error}") from error

    def forget(self) -> None:
        """Let it drop kept prompts. Raises SamplerAway."""
        self._json("POST", "/forget")

    def close(self) -> None:
        """Cancel what is in progress; every later call raises SamplerAway."""
        with self._lock:
            self._is_closed, left = True, set(self._open)
        for connection in left:
            _shut(connection)

    def lost(self) -> None:
        """Note that nothing is known of what it holds."""
        self.newest, self.held, self.has_static = None, set(), False

    def _json(self, method: str, path: str, body: Sequence[bytes | memoryview] = ()) -> Any:
        with _Call(self, method, path, body) as response:
            return json.loads(_exactly(response, int(response.headers["Content-Length"])) or b"{}")

    def _stream(self, path: str, body: Sequence[bytes | memoryview], progress: Callable[[], None]) -> bytes:
        """Return the reply that follows the beats."""
        with _Call(self, "POST", path, body) as response:
            last, since = -1, time.monotonic()
            while True:
                kind, number = FRAME.unpack(_exactly(response, FRAME.size))
                if kind == REPLY:
                    return _exactly(response, number)
                if kind == FAILURE:
                    failure = json.loads(_exactly(response, number))
                    raise (Conflict if failure["conflict"] else SamplerFailed)(failure["error"])
                if number != last:
                    last, since = number, time.monotonic()
                    progress()
                elif time.monotonic() - since > self._stalled_s:
                    raise SamplerAway(f"it sampled nothing for {self._stalled_s:g} s")

    def _connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_S)
        with self._lock:
            if self._is_closed:
                raise SamplerAway("the run ends")
            self._open.add(connection)
        return connection


class _Call:
    """A request and its response; errors on the way become SamplerAway, Conflict or ConfigError."""

    def __init__(self, client: SamplerClient, method: str, path: str, body: Sequence[bytes | memoryview]) -> None:
        self._client, self._method, self._path, self._body = client, method, path, body

    def __enter__(self) -> http.client.HTTPResponse:
        client, self._connection = self._client, self._client._connect()
        headers = {"Authorization": f"Bearer {client._token}", "Content-Length": str(messages.size(self._body))}
        try:
            self._connection.connect()
            self._connection.sock.settimeout(client._silent_s)
            self._connection.request(self._method, self._path, iter(self._body), headers)
            response = self._connection.getresponse()
            if response.status == 200:
                return response
            text = _exactly(response, int(response.headers.get("Content-Length", 0))).decode(errors="replace")
            raise self._refusal(response.status, text)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        with self._client._lock:
            self._client._open.discard(self._connection)
        self._connection.close()
        if isinstance(error, (OSError, http.client.HTTPException, ValueError, struct.error, KeyError)):
            raise SamplerAway(f"{self._path}: {type(error).__name__}: {error}".rstrip(": ")) from error

    def _refusal(self, status: int, text: str) -> Exception:
        if status == 401:
            return ConfigError(
                f"sampler {self._client.name}: refuses the trainer's token; hint: {TOKEN_ENV} must be the same for both"
            )
        return Conflict(text) if status == 409 else SamplerAway(f"{self._path}: {status}: {text[:300]}")


def _exactly(response: http.client.HTTPResponse, count: int) -> bytes:
    """Read so many bytes. Raises IncompleteRead if the connection breaks off."""
    content = bytearray(count)
    view, at = memoryview(content), 0
    while at < count:
        more = response.readinto(view[at:])
        if not more:
            raise http.client.IncompleteRead(bytes(content[:at]), count - at)
        at += more
    return bytes(content) if count < 1 << 16 else content  # type: ignore[return-value]


def _shut(connection: http.client.HTTPConnection) -> None:
    if connection.sock is not None:
        try:
            connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # gone already


def entries(parts: Sequence[tuple[Key, str, Sequence[np.ndarray]]], version: str) -> list[bytes | memoryview]:
    """Return the body of `tensors`: keys, forms and arrays of some weights."""
    listed = [[*key, form, len(arrays)] for key, form, arrays in parts]
    return messages.encode({"version": version, "weights": listed}, [x for _, _, arrays in parts for x in arrays])
