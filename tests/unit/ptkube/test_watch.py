"""The list-watch of a program that waits: what it endures, and what ends it."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from ptkube.client import Kube, ListResult
from ptkube.errors import CLIENT_CLOSED, Unreachable
from ptkube.resources import PODS
from ptkube.watch import changes


class ClosedAfterItsFirstList:
    lists = 0

    def list(self, *_: Any, **__: Any) -> ListResult:
        self.lists += 1
        if self.lists > 1:
            raise Unreachable(0, CLIENT_CLOSED, "closed")
        return ListResult([], "1")

    def watch(self, *_: Any, **__: Any) -> Iterator[Any]:
        raise Unreachable(0, CLIENT_CLOSED, "closed")


def test_a_client_that_this_program_closed_ends_the_wait_at_once() -> None:
    kube = ClosedAfterItsFirstList()
    with pytest.raises(Unreachable, match="closed"):
        list(changes(cast(Kube, kube), PODS, "a"))
    assert kube.lists == 1
