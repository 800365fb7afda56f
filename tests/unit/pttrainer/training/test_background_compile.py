"""Functions that compile on threads: each program once, one after the other, and it is the one that is called."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from pttrainer.runtime.background_compile import BackgroundCompile, EarlyFunction
from pttrainer.runtime.distributed import sharding

MESH = sharding.make_mesh((1,), jax.devices()[:1])


@pytest.fixture
def compiled() -> Iterator[list[bool]]:
    """For each program that was compiled, whether this thread did so."""
    threads, here = [], threading.get_ident()

    def record(event: str, seconds: float, **facts: Any) -> None:
        if event.endswith("backend_compile_duration"):
            threads.append(threading.get_ident() == here)

    jax.monitoring.register_event_duration_secs_listener(record)
    yield threads
    jax.monitoring.unregister_event_duration_listener(record)


def rows(count: int) -> Any:
    """So many rows of ones, on the mesh."""
    return sharding.put(MESH, np.ones((count, 2), np.float32))


def test_arguments_that_are_expected_twice_compile_once_and_no_call_compiles(compiled: list[bool]) -> None:
    function = EarlyFunction(jax.jit(lambda x, factor: x * factor, static_argnums=1), (3.0,))
    first = function.expect(MESH, (sharding.batch_shapes(MESH, np.ones((4, 2), np.float32)),), None)
    four = rows(4)
    assert function.expect(MESH, (four,), first) is first
    assert float(function(four).sum()) == 24.0
    assert compiled.count(False) == 1


def test_arguments_of_other_shapes_compile_when_they_come(compiled: list[bool]) -> None:
    function = EarlyFunction(jax.jit(lambda x: x.sum()))
    function.expect(MESH, (rows(4),), None)
    six = rows(6)
    assert float(function(six)) == 12.0
    assert compiled.count(True) == 1


def test_one_program_compiles_after_the_other() -> None:
    begun, has_begun, may_end = [], threading.Event(), threading.Event()

    class Slow:
        def __init__(self, name: str) -> None:
            self.name = name

        def lower(self, *arguments: Any) -> "Slow":
            return self

        def compile(self) -> None:
            begun.append(self.name)
            has_begun.set()
            may_end.wait(10)

    first = BackgroundCompile(Slow("first"), MESH, (rows(1),))
    second = BackgroundCompile(Slow("second"), MESH, (rows(1),), first)
    assert has_begun.wait(10)
    time.sleep(0.05)
    assert begun == ["first"]
    may_end.set()
    second.compiled((rows(1),))
    assert begun == ["first", "second"]


class Failing:
    """A jitted function whose compiler fails."""

    def lower(self, *arguments: Any) -> "Failing":
        return self

    def compile(self) -> None:
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")


def test_what_the_compiler_raises_is_heard_where_the_program_is_needed() -> None:
    early = BackgroundCompile(Failing(), MESH, (rows(2),))
    assert early.compiled((rows(3),)) is None
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        early.compiled((rows(2),))
