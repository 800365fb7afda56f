"""A cloud that only the leader may change."""

from collections.abc import Callable

from ptoperator.capacity.cloud import Answer, Cloud, CloudAction, CloudProvider, Reservation


class LeaderOnlyCloud:
    """Forwards to a cloud. check: raises if this replica may change nothing."""

    def __init__(self, cloud: CloudProvider, check: Callable[[], None]) -> None:
        self._cloud, self._check = cloud, check

    def snapshot(self, uid: str = "", /) -> Cloud:
        """Return a snapshot."""
        return self._cloud.snapshot(uid)

    def last(self) -> Cloud | None:
        """Return the latest snapshot without a call, or None."""
        return self._cloud.last()

    def reservation(self, name: str, zone: str, /) -> Reservation | None:
        """Return a reservation, or None if it cannot be read."""
        return self._cloud.reservation(name, zone)

    def carry_out(self, action: CloudAction, /) -> Answer:
        """Start one change if this replica leads."""
        self._check()
        return self._cloud.carry_out(action)
