"""What a capacity provider is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ptapi.spec import CapacityOption
from ptapi.status import CapacityStatus
from ptoperator.actions import Action
from ptoperator.render import Layout


@dataclass(frozen=True)
class Decision:
    """ready: pods may be made now. actions: what to do towards it. message: what it waits for, for a person."""

    ready: bool
    status: CapacityStatus
    actions: tuple[Action, ...] = ()
    message: str = ""


class Provider(Protocol):
    """Decides about one option of spec.capacity from what status says of it so far. Pure: no clock, no cloud."""

    def __call__(
        self, option: CapacityOption, layout: Layout, so_far: CapacityStatus, now: datetime, /
    ) -> Decision: ...
