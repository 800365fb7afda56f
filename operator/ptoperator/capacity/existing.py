"""Capacity that is there: nothing to make, nothing to delete. The scheduler finds the nodes, or says why not."""

from __future__ import annotations

from datetime import datetime

from ptapi.spec import CapacityOption
from ptapi.status import CapacityStatus
from ptoperator.capacity.decision import Decision
from ptoperator.render import Layout


def existing(option: CapacityOption, layout: Layout, so_far: CapacityStatus, now: datetime) -> Decision:
    return Decision(ready=True, status=so_far)
