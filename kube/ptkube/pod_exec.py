"""A command in a running container: `pods/exec` over Kubernetes' WebSocket protocol, by the official client's stream.

One thread: a caller polls `socket` beside its own input, and sends and receives in turn.
"""

from __future__ import annotations

import copy
import json
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from kubernetes.client import Configuration
from kubernetes.stream.ws_client import (
    ERROR_CHANNEL,
    RESIZE_CHANNEL,
    STDERR_CHANNEL,
    STDIN_CHANNEL,
    STDOUT_CHANNEL,
    V5_CHANNEL_PROTOCOL,
    WSClient,
    get_websocket_url,
)
from websocket import WebSocketBadStatusException, WebSocketException

from ptkube.client import Kube
from ptkube.errors import ApiError, ConfigError, Unreachable, from_response
from ptkube.kubeconfig import Access
from ptkube.resources import PODS

_POLL_S = 5.0


@dataclass(frozen=True)
class Container:
    """Where a command runs."""

    pod: str
    namespace: str
    name: str


class RemoteCommand:
    """A command that runs in a container."""

    def __init__(self, stream: WSClient) -> None:
        self._stream = stream

    @property
    def socket(self) -> int:
        """Return the file descriptor that is readable when the command has written."""
        return int(self._stream.sock.sock.fileno())

    @property
    def is_running(self) -> bool:
        """Return True until the connection has ended."""
        return bool(self._stream.is_open())

    def send(self, data: bytes) -> None:
        """Write to the command's stdin."""
        with _lost():
            self._stream.write_channel(STDIN_CHANNEL, data)

    def end_input(self) -> None:
        """Close the command's stdin. Raises ApiError where the server cannot be told so."""
        if self._stream.subprotocol != V5_CHANNEL_PROTOCOL:
            raise ApiError(0, "NotSupported", "the API server cannot end a command's stdin (Kubernetes before 1.30)")
        with _lost():
            self._stream.close_channel(STDIN_CHANNEL)

    def resize(self, width: int, height: int) -> None:
        """Say how large the terminal is."""
        with _lost():
            self._stream.write_channel(RESIZE_CHANNEL, json.dumps({"Width": width, "Height": height}).encode())

    def receive(self, timeout_s: float) -> tuple[bytes, bytes]:
        """Return what has arrived of stdout and stderr; wait for the first of it no longer than this."""
        with _lost():
            self._stream.update(timeout=timeout_s)
            while self.is_running and _is_decrypted(self._stream):
                self._stream.update(timeout=0)
            return self._stream.read_channel(STDOUT_CHANNEL), self._stream.read_channel(STDERR_CHANNEL)

    def exit_code(self) -> int:
        """Return the command's exit code, after its end. Raises ApiError if it did not start, or was lost."""
        text = self._stream.read_channel(ERROR_CHANNEL)
        if not text:
            raise Unreachable(0, "ConnectionLost", "the connection ended before the command did")
        status = json.loads(text)
        if status.get("status") == "Success":
            return 0
        for cause in (status.get("details") or {}).get("causes") or []:
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
        raise from_response(int(status.get("code") or 500), text)


@contextmanager
def started(
    kube: Kube, container: Container, command: Sequence[str], *, stdin: bool, tty: bool
) -> Iterator[RemoteCommand]:
    """Start a command in a container; the connection ends with the block."""
    access = kube.access
    if access.impersonate:
        raise ConfigError(f"{access.source}: exec as another user (`as: {access.impersonate}`) is not supported")
    query = [("container", container.name), ("stdin", stdin), ("stdout", True), ("stderr", not tty), ("tty", tty)]
    words = [(key, str(value).lower() if isinstance(value, bool) else value) for key, value in query]
    path = PODS.path(container.namespace, container.pod, "exec")
    url = f"{access.server}{path}?{urlencode([*words, *(('command', word) for word in command)])}"
    with _lost(), _certificates(access) as configuration:
        headers = {"authorization": access.authorization} if access.authorization else {}
        stream = WSClient(configuration, get_websocket_url(url), headers, capture_all=False, binary=True)
    try:
        yield RemoteCommand(stream)
    finally:
        stream.close(timeout=1)


def output(kube: Kube, container: Container, command: Sequence[str]) -> Iterator[bytes]:
    """Yield what a command writes to stdout. Raises ApiError with what it writes to stderr if it fails."""
    errors = b""
    with started(kube, container, command, stdin=False, tty=False) as remote:
        while remote.is_running:
            out, more = remote.receive(_POLL_S)
            errors += more
            if out:
                yield out
        code = remote.exit_code()
    if code:
        text = errors.decode("utf-8", "replace").strip()
        raise ApiError(0, "NonZeroExitCode", f"{command[0]} in pod {container.pod} exits with code {code}: {text}")


@contextmanager
def _certificates(access: Access) -> Iterator[Configuration]:
    """Give the configuration with certificates in files, which the stream reads when it connects."""
    configuration = copy.copy(access.configuration)
    with tempfile.TemporaryDirectory(prefix="posttrain-") as folder:
        for field, text in (
            ("ssl_ca_cert", access.ca_pem),
            ("cert_file", access.cert_pem),
            ("key_file", access.key_pem),
        ):
            if text:
                path = Path(folder) / field
                path.touch(mode=0o600)
                path.write_text(text)
                setattr(configuration, field, str(path))
        yield configuration


@contextmanager
def _lost() -> Iterator[None]:
    """Raise the API server's refusal, or Unreachable if the connection is gone."""
    try:
        yield
    except WebSocketBadStatusException as error:
        raise from_response(error.status_code, error.resp_body or b"") from error
    except (WebSocketException, OSError) as error:
        raise Unreachable(0, "ConnectionLost", f"the connection to the container is lost: {error}") from error


def _is_decrypted(stream: WSClient) -> bool:
    """Return True if more has been read from the socket than was returned: no poll shows it."""
    socket = stream.sock.sock
    return isinstance(socket, ssl.SSLSocket) and socket.pending() > 0
