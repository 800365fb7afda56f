"""A cloud that only the replica that works may change."""

from __future__ import annotations

from collections.abc import Callable

from ptoperator.capacity.cloud import Answer, Cloud, CloudAction, CloudProvider, Reservation


class LeaderOnlyCloud:
    """check: raises where nothing may be changed."""

    def __init__(self, cloud: CloudProvider, check: Callable[[], None]) -> None:
        self._cloud, self._check = cloud, check

    def look(self, uid: str = "", /) -> Cloud:
        return self._cloud.look(uid)

    def last(self) -> Cloud | None:
        return self._cloud.last()

    def reservation(self, name: str, zone: str, /) -> Reservation | None:
        return self._cloud.reservation(name, zone)

    def carry_out(self, action: CloudAction, /) -> Answer:
        self._check()
        return self._cloud.carry_out(action)
