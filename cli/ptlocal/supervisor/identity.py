"""Who a cluster is: an id made once, by which its processes are known even after a crash; and the sweep for them."""

from __future__ import annotations

import json
import secrets
from functools import partial
from typing import Any

import psutil

from ptlocal.kubelet.pod_worker import RECORD
from ptlocal.paths import Layout
from ptlocal.processes import CLUSTER_MARK, in_session, kill_all, marked

_SAME_BOOT_S = 2.0  # the boot time is computed from two clocks and wavers a little


def cluster_id(layout: Layout) -> str:
    try:
        return str(json.loads(layout.cluster_file.read_text())["id"])
    except FileNotFoundError:
        made = secrets.token_hex(8)
        layout.cluster_file.write_text(json.dumps({"id": made}))
        return made


def sweep(layout: Layout) -> int:
    """Kill whatever a cluster that is not running any more has left behind; returns how many processes."""
    if not layout.cluster_file.exists():
        return 0
    mine = cluster_id(layout)
    killed = kill_all(lambda: marked(CLUSTER_MARK, mine))
    for record in layout.pods.glob(f"*/{RECORD}"):
        killed += _sweep_record(json.loads(record.read_text()))
    return killed


def _sweep_record(record: Any) -> int:
    """Processes that dropped the marker from their environment still belong to their container's session."""
    if abs(record["boot"] - psutil.boot_time()) > _SAME_BOOT_S:
        return 0  # another boot: the numbers mean nothing now
    return sum(kill_all(partial(in_session, c["pid"], c["born"])) for c in record["containers"].values())
