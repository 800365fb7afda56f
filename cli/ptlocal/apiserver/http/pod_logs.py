"""GET pods/NAME/log: the output of a pod's containers, from the kubelet stand-in's files (ptlocal.paths).

One file per run of a container, raw bytes. Following polls the file five times a second and ends when the run is over
(or the pod is gone) and the file is read to its end. Left out: per-line times; `timestamps` and `sinceTime` use the
time at which the server first read a line when following, else the file's modification time.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ptlocal.apiserver.errors import StatusError, bad_request
from ptlocal.apiserver.write_options import flag, whole_number
from ptlocal.apiserver.writes.object_meta import now
from ptlocal.paths import Layout

Manifest = dict[str, Any]
_POLL_S = 0.2
_CHUNK = 64 * 1024


@dataclass(frozen=True)
class LogRequest:
    """The parameters of a log request."""

    container: str
    restart: int
    follow: bool
    tail: int | None
    since_s: int | None
    limit_bytes: int | None
    timestamps: bool


def log_request(pod: Manifest, query: Mapping[str, str]) -> LogRequest:
    """Parse the request and check it against the pod; errors have a kubelet's messages."""
    name = container_of(pod, query.get("container") or "")
    status = _status_of(pod, name)
    restart = int(status.get("restartCount") or 0)
    if flag(query, "previous"):
        if restart == 0:
            raise bad_request(f'previous terminated container "{name}" in pod "{pod["metadata"]["name"]}" not found')
        restart -= 1
    elif not _has_started(status):
        reason = ((status.get("state") or {}).get("waiting") or {}).get("reason") or "ContainerCreating"
        raise bad_request(f'container "{name}" in pod "{pod["metadata"]["name"]}" is waiting to start: {reason}')
    return LogRequest(
        name,
        restart,
        flag(query, "follow"),
        whole_number(query, "tailLines"),
        whole_number(query, "sinceSeconds"),
        whole_number(query, "limitBytes"),
        flag(query, "timestamps"),
    )


def container_of(pod: Manifest, name: str) -> str:
    """Return the container that a request means; the errors are the API server's."""
    meta, spec = pod["metadata"], pod["spec"]
    names = [c["name"] for c in spec.get("containers") or []]
    init = [c["name"] for c in spec.get("initContainers") or []]
    if name:
        if name not in names + init:
            raise bad_request(f"container {name} is not valid for pod {meta['name']}")
        return name
    if len(names) == 1:
        return str(names[0])
    choose = f"a container name must be specified for pod {meta['name']}, choose one of: [{' '.join(names)}]"
    raise bad_request(choose + (f" or one of the init containers: [{' '.join(init)}]" if init else ""))


def _status_of(pod: Manifest, container: str) -> Manifest:
    status = pod.get("status") or {}
    for key in ("containerStatuses", "initContainerStatuses"):
        for entry in status.get(key) or []:
            if entry.get("name") == container:
                container_status: Manifest = entry
                return container_status
    return {}


def _has_started(status: Manifest) -> bool:
    state = status.get("state") or {}
    return "running" in state or "terminated" in state or bool(status.get("lastState"))


def is_over(pod: Manifest | None, request: LogRequest) -> bool:
    """Return True if nothing more will be written to the run's file."""
    if pod is None or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return True
    status = _status_of(pod, request.container)
    return "terminated" in (status.get("state") or {}) or int(status.get("restartCount") or 0) > request.restart


class LogReader:
    """The requested bytes of one run's log."""

    def __init__(self, layout: Layout, pod: Manifest, request: LogRequest) -> None:
        self._path = layout.container_log(pod["metadata"]["uid"], request.container, request.restart)
        self._request = request
        self._position = 0
        self._line_open = False

    def first(self) -> bytes:
        """Return what exists now."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StatusError(500, "InternalError", f"cannot read the log: {error.strerror}") from error
        self._position = len(data)
        if self._request.since_s is not None and time.time() - self._path.stat().st_mtime > self._request.since_s:
            data = b""
        if self._request.tail is not None:
            data = _last_lines(data, self._request.tail)
        if self._request.limit_bytes is not None:
            data = data[: self._request.limit_bytes]
        return self._stamped(data)

    def more(self) -> bytes:
        """Return the bytes written since the last call."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._position)
                data = log.read(_CHUNK)
        except OSError:
            return b""
        self._position += len(data)
        return self._stamped(data)

    def _stamped(self, data: bytes) -> bytes:
        if not self._request.timestamps or not data:
            return data
        mark = f"{now()} ".encode()
        stamped = b"".join(
            (b"" if number == 0 and self._line_open else mark) + line
            for number, line in enumerate(data.splitlines(keepends=True))
        )
        self._line_open = not data.endswith(b"\n")
        return stamped


def _last_lines(data: bytes, count: int) -> bytes:
    if count == 0:
        return b""
    return b"".join(data.splitlines(keepends=True)[-count:])


async def follow(reader: LogReader, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield new bytes until `ended()`, and once more after that, so that the last lines are not lost."""
    while True:
        over = ended()
        data = reader.more()
        if data:
            yield data
        elif over:
            return
        else:
            await asyncio.sleep(_POLL_S)
