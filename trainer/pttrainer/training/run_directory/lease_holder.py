"""The holder of a run directory: how a process identifies itself in the lease, and whether a named holder is alive.

This is known for processes of the same boot of the same machine, in the same PID namespace: one is gone if no process
has the number, or one that started at another time. A restarted container has another namespace, and nothing is known
of other machines, nor where there is no /proc.
"""

import os
import secrets
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from ptapi.run_directory import LEASE, Lease
from ptapi.spec import PostTrainJob
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io.place import Place

Life = Literal["gone", "running", "unknown"]
_BOOT, _NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")


def lease_of_this_process(job: PostTrainJob) -> Lease:
    """Return the lease that this process would write."""
    uid, namespace = job.metadata.uid or "", job.metadata.namespace or ""
    host, pid = socket.gethostname(), os.getpid()
    process = _state(pid)
    return Lease(
        holder=f"pod {processes.pod()} (namespace {namespace})" if uid else f"ptctl train on {host}, pid {pid}",
        host=host,
        boot=_boot(),
        pid_namespace=_namespace(),
        pid=pid,
        process_started=0 if process is None else process[1],
        name=job.metadata.name,
        namespace=namespace,
        uid=uid,
        token=secrets.token_hex(8),
        limit_seconds=processes.lease_limit_s(),
    )


def life(lease: Lease) -> Life:
    """Return the holder's state as known here. A stopped one (Ctrl-Z) is unknown: it cannot report its end."""
    here = (socket.gethostname(), _boot(), _namespace())
    if not all(here) or (lease.host, lease.boot, lease.pid_namespace) != here or lease.pid < 1:
        return "unknown"
    try:
        os.kill(lease.pid, 0)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        pass
    process = _state(lease.pid)
    if process is None:
        return "unknown"  # /proc may hide what other users run
    state, started = process
    if started != lease.process_started or state in "ZX":
        return "gone"
    return "unknown" if state in "Tt" else "running"


def read(content: bytes | None) -> Lease | None:
    """Return the lease in a file, or None if there is none. An unreadable lease has an unknown holder."""
    if content is None:
        return None
    try:
        return Lease.model_validate_json(content)
    except ValueError:
        return Lease(limit_seconds=processes.lease_limit_s())


def current_writer(place: Place) -> str:
    """Describe the process that writes in a run directory; empty if none does."""
    lease = read(place.read_versioned(LEASE).content)
    if lease is None or lease.released or life(lease) == "gone":
        return ""
    return describe(lease)


def describe(lease: Lease) -> str:
    """Describe the holder, with the times of acquisition and of the last heartbeat."""
    return f"{lease.holder} (since {lease.acquired or 'unknown'}, last heartbeat {lease.heartbeat or 'unknown'})"


def now() -> str:
    """Return the time as RFC 3339, for people: no decision depends on the clocks of two machines."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _state(pid: int) -> tuple[str, int] | None:
    """Return a process's state letter and its start in ticks since boot; None if they are unavailable."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[19])


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str(_NAMESPACE.readlink())
    except OSError:
        return ""
