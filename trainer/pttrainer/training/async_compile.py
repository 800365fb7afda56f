"""The train step, compiled before its first batch is there: on a thread of its own, while weights are read, a rollout's
programs are compiled and the first samples are drawn.

The shapes of a first batch are foreseen (`Algorithm.foreseen`); all else that the step takes is known. It is the same
program, found under the same key in the cache of compiled programs; what the compiler has to say of it is heard where
the step is first needed. Where a batch comes out in other shapes it is compiled when it is there, as ever, and the
foreseen one waits for the batch that needs it.

Left out: several processes, which would have to compile in one order; GPUs, whose compiler tries kernels on the device
and would measure the rollout beside them.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import jax
from jax.sharding import Mesh

from pttrainer.runtime.reporting.termination import COMPILER


class Early:
    """A jitted function on its way to being compiled. arguments: arrays, or shapes on shardings."""

    def __init__(self, function: Any, mesh: Mesh, arguments: tuple[Any, ...]) -> None:
        self._forms, self._compiled = _forms(arguments), Future[Any]()
        # Not a daemon: an interpreter that shuts down while one compiles dies of it.
        threading.Thread(target=self._compile, args=(function, mesh, arguments), name=COMPILER).start()

    def compiled(self, arguments: tuple[Any, ...]) -> Any | None:
        """The compiled function, waited for, or what the compiler raised; None where arguments have another form."""
        return self._compiled.result() if _forms(arguments) == self._forms else None

    def _compile(self, function: Any, mesh: Mesh, arguments: tuple[Any, ...]) -> None:
        try:
            with jax.set_mesh(mesh):  # a thread begins without one
                self._compiled.set_result(function.lower(*arguments).compile())
        except BaseException as error:  # raised where it is asked for
            self._compiled.set_exception(error)


def is_possible() -> bool:
    """Whether a program can be compiled while others run."""
    return jax.process_count() == 1 and jax.default_backend() != "gpu"


def _forms(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    leaves, structure = jax.tree.flatten(arguments)
    return (structure, *((x.shape, x.dtype, x.sharding) for x in leaves))
