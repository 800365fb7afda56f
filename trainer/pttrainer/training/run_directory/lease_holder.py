"""Who holds a run directory: how a process names itself in the lease, and whether one that is named there still lives.

That is known of processes of the same boot of the same machine, in the same namespace of process numbers: one is gone
where the number is nobody's, or another's who began at another time. A container that is started again has another
namespace, and of other machines nothing is known; nor is it where there is no /proc.
"""

from __future__ import annotations

import os
import secrets
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from ptapi.run_directory import LEASE, Lease
from ptapi.spec import PostTrainJob
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io.storage import Place

Life = Literal["gone", "running", "unknown"]
_BOOT, _NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")


def of_this_process(job: PostTrainJob) -> Lease:
    """What this process would write."""
    uid, namespace = job.metadata.uid or "", job.metadata.namespace or ""
    host, pid = socket.gethostname(), os.getpid()
    found = _state(pid)
    return Lease(
        holder=f"pod {processes.pod()} (namespace {namespace})" if uid else f"ptctl train on {host}, pid {pid}",
        host=host,
        boot=_boot(),
        pid_namespace=_namespace(),
        pid=pid,
        process_started=0 if found is None else found[1],
        name=job.metadata.name,
        namespace=namespace,
        uid=uid,
        token=secrets.token_hex(8),
        limit_seconds=processes.lease_limit_s(),
    )


def life(lease: Lease) -> Life:
    """What is known here of the holder. One that is stopped (Ctrl-Z) is unknown: it cannot say that it ends."""
    here = (socket.gethostname(), _boot(), _namespace())
    if not all(here) or (lease.host, lease.boot, lease.pid_namespace) != here or lease.pid < 1:
        return "unknown"
    try:
        os.kill(lease.pid, 0)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        pass
    found = _state(lease.pid)
    if found is None:
        return "unknown"  # /proc may hide what other users run
    state, started = found
    if started != lease.process_started or state in "ZX":
        return "gone"
    return "unknown" if state in "Tt" else "running"


def read(content: bytes | None) -> Lease | None:
    """The lease in a file, None where there is none. Of one that cannot be read the holder is unknown."""
    if content is None:
        return None
    try:
        return Lease.model_validate_json(content)
    except ValueError:
        return Lease(limit_seconds=processes.lease_limit_s())


def of_place(place: Place) -> str:
    """Who writes in a run directory; empty for nobody."""
    lease = read(place.read_versioned(LEASE).content)
    if lease is None or lease.released or life(lease) == "gone":
        return ""
    return told(lease)


def told(lease: Lease) -> str:
    """The holder, since when and until when it was heard of."""
    return f"{lease.holder} (since {lease.acquired or 'unknown'}, last heartbeat {lease.heartbeat or 'unknown'})"


def now() -> str:
    """RFC 3339, for people: no decision rests on the clocks of two machines."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _state(pid: int) -> tuple[str, int] | None:
    """A process's state (a letter) and when it began, in ticks since boot; None where that is not told."""
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
