"""Compile the train step on a thread while weights load, rollout programs compile and the first samples are drawn.

The shapes of the first batch are predicted (`Algorithm.expected_batch`); everything else that the step takes is known.
The program is the same one, with the same key in the compilation cache; a compiler error is raised where the step is
first needed. If the batch has other shapes, the step is compiled for it then, and the predicted program waits for the
batch that needs it.

Left out: several processes, which would have to compile in one order; GPUs, whose compiler benchmarks kernels on the
device and would measure the rollout beside them.
"""

import threading
from concurrent.futures import Future
from typing import Any

import jax
from jax.sharding import Mesh

from pttrainer.runtime.reporting.termination import COMPILER


class BackgroundCompile:
    """A jitted function that is being compiled. arguments: arrays, or shapes with shardings."""

    def __init__(self, function: Any, mesh: Mesh, arguments: tuple[Any, ...]) -> None:
        self._forms, self._compiled = _forms(arguments), Future[Any]()
        # Not a daemon: an interpreter that shuts down while one compiles dies of it.
        threading.Thread(target=self._compile, args=(function, mesh, arguments), name=COMPILER).start()

    def compiled(self, arguments: tuple[Any, ...]) -> Any | None:
        """Wait for the compiled function and return it, or raise the compiler's error.

        Return None if the arguments have other shapes or shardings.
        """
        return self._compiled.result() if _forms(arguments) == self._forms else None

    def _compile(self, function: Any, mesh: Mesh, arguments: tuple[Any, ...]) -> None:
        try:
            with jax.set_mesh(mesh):  # a thread starts without one
                self._compiled.set_result(function.lower(*arguments).compile())
        except BaseException as error:  # raised by `compiled`
            self._compiled.set_exception(error)


def is_possible() -> bool:
    """Return True if a program can be compiled while others run."""
    return jax.process_count() == 1 and jax.default_backend() != "gpu"


def _forms(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    leaves, structure = jax.tree.flatten(arguments)
    return (structure, *((x.shape, x.dtype, x.sharding) for x in leaves))
