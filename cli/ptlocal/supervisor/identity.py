"""A cluster's id, which marks its processes, and the cleanup of processes that a crash left."""

import json
import secrets
from functools import partial
from typing import Any

import psutil

from ptlocal.paths import PROCESS_RECORD, Layout
from ptlocal.processes import CLUSTER_MARK, in_session, kill_all, with_marker

_SAME_BOOT_S = 2.0  # the boot time is computed from two clocks and is not exact


def cluster_id(layout: Layout) -> str:
    """Return the cluster's id; create it on the first call."""
    try:
        return str(json.loads(layout.cluster_file.read_text())["id"])
    except FileNotFoundError:
        new_id = secrets.token_hex(8)
        layout.cluster_file.write_text(json.dumps({"id": new_id}))
        return new_id


def kill_leftovers(layout: Layout) -> int:
    """Kill every process that a cluster which no longer runs has left behind; return their number."""
    if not layout.cluster_file.exists():
        return 0
    own_id = cluster_id(layout)
    killed = kill_all(lambda: with_marker(CLUSTER_MARK, own_id))
    for record in layout.pods.glob(f"*/{PROCESS_RECORD}"):
        killed += _sweep_record(json.loads(record.read_text()))
    return killed


def _sweep_record(record: Any) -> int:
    """Kill the processes of a container's session, which no longer carry the marker, and return their number."""
    if abs(record["boot"] - psutil.boot_time()) > _SAME_BOOT_S:
        return 0  # another boot: the process ids are stale
    return sum(kill_all(partial(in_session, c["pid"], c["born"])) for c in record["containers"].values())
