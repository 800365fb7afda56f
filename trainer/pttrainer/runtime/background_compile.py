"""Jitted functions that compile on threads, for the arguments that are expected, while other things run."""

import ctypes
import threading
from concurrent.futures import Future
from typing import Any

import jax
from jax.sharding import Mesh

from pttrainer.runtime.reporting.termination import COMPILER


class BackgroundCompile:
    """A jitted function that is being compiled.

    arguments: arrays, or shapes with shardings. after: another one, which is compiled first.
    """

    def __init__(
        self, function: Any, mesh: Mesh, arguments: tuple[Any, ...], after: "BackgroundCompile | None" = None
    ) -> None:
        self._forms, self._compiled = _forms(arguments), Future[Any]()
        # Not a daemon: an interpreter that shuts down while one compiles dies of it.
        threading.Thread(target=self._compile, args=(function, mesh, arguments, after), name=COMPILER).start()

    def compiled(self, arguments: tuple[Any, ...]) -> Any | None:
        """Wait for the compiled function and return it, or raise the compiler's error.

        Return None if the arguments have other shapes or shardings.
        """
        return self._compiled.result() if self.is_for(arguments) else None

    def is_for(self, arguments: tuple[Any, ...]) -> bool:
        """Return True if the arguments have the shapes and shardings that it is compiled for."""
        return _forms(arguments) == self._forms

    def _compile(
        self, function: Any, mesh: Mesh, arguments: tuple[Any, ...], after: "BackgroundCompile | None"
    ) -> None:
        if after is not None:
            after._compiled.exception()  # waits
        try:
            with jax.set_mesh(mesh):  # a thread starts without one
                program = function.lower(*arguments).compile()
            _give_memory_back()
            self._compiled.set_result(program)
        except BaseException as error:  # raised by `compiled`
            self._compiled.set_exception(error)


class EarlyFunction:
    """A jitted function, and its programs for the arguments that are expected.

    static: arguments that are compiled in, behind the others.
    """

    def __init__(self, function: Any, static: tuple[Any, ...] = ()) -> None:
        self._function, self._static = function, static
        self._expected: list[BackgroundCompile] = []

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function returns; wait for its program where that is being compiled."""
        compiled = (early.compiled(arguments) for early in self._expected)
        program = next((one for one in compiled if one is not None), None)
        return self._function(*arguments, *self._static) if program is None else program(*arguments)

    def lower(self, *arguments: Any) -> Any:
        """Lower the function for these arguments."""
        return self._function.lower(*arguments, *self._static)

    def expect(
        self, mesh: Mesh, arguments: tuple[Any, ...], after: BackgroundCompile | None
    ) -> BackgroundCompile | None:
        """Begin to compile it, unless that was begun before. Return what the next program is compiled after.

        arguments: shapes with shardings.
        """
        if any(early.is_for(arguments) for early in self._expected):
            return after
        self._expected.append(BackgroundCompile(self, mesh, arguments, after))
        return self._expected[-1]


def _give_memory_back() -> None:
    """Return freed memory to the system, where the C library can.

    It keeps what the compiler used, 0.3 GB behind a small model's step on a CPU, and the first step comes on top.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc
        trim(0)


def _forms(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    leaves, structure = jax.tree.flatten(arguments)
    return (structure, *((x.shape, x.dtype, x.sharding) for x in leaves))
