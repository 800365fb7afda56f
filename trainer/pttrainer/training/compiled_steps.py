"""The train step as compiled programs, one per shape of batch; the expected one is compiled ahead on a thread.

It compiles while weights load, rollout programs compile and the first samples are drawn. The shapes of the first batch
are predicted (`Algorithm.expected_batch`); everything else that the step takes is known.
The program is the same one, with the same key in the compilation cache; a compiler error is raised where the step is
first needed. If the batch has other shapes, the step is compiled for it then, and the predicted program waits for the
batch that needs it.

Where `training.remat: auto` saves activations that the compiler finds no memory for, the step with full recomputation
takes its place; no other job is changed to make it fit.

Left out: several processes, which would have to compile in one order; GPUs, whose compiler benchmarks kernels on the
device and would measure the rollout beside them.
"""

from dataclasses import dataclass, field
from typing import Any

import jax

from pttrainer.algorithms.algorithm import Algorithm
from pttrainer.batch import Batch
from pttrainer.data.sources.files import Note, silent
from pttrainer.models import Params
from pttrainer.runtime.background_compile import BackgroundCompile
from pttrainer.runtime.distributed import sharding
from pttrainer.train_step.objective import HasTeacher
from pttrainer.train_step.program import Program
from pttrainer.train_step.state import Layout
from pttrainer.train_step.step import train_step


@dataclass
class StepPrograms:
    """The train step, jitted as `step`, and its programs.

    constants: the weights that the step takes and never changes. expected: the program for the batch that the
    algorithm expects, if it names one. lean: the step that needs the least memory, where the job leaves that open.
    """

    step: Any
    layout: Layout
    constants: tuple[Any, ...]
    expected: BackgroundCompile | None = None
    lean: Any | None = None
    note: Note = silent
    _programs: dict[Any, Any] = field(default_factory=dict)

    def of(self, batch: Batch) -> Any | None:
        """Return the program for batches of this shape, or None if it is not compiled yet."""
        return self._programs.get(_shapes(batch))

    def compile(self, state: Any, batch: Batch) -> Any:
        """Return the program for batches of this shape; wait for it where it is being compiled already."""
        arguments = (state, batch, *self.constants)
        try:
            compiled = self._compiled(arguments)
        except jax.errors.JaxRuntimeError as error:
            if self.lean is None or "RESOURCE_EXHAUSTED" not in str(error):
                raise
            self.note("training.remat: auto: the compiler finds no memory for saved activations; full is taken")
            self.step, self.lean, self.expected = self.lean, None, None
            compiled = self._compiled(arguments)
        self._programs[_shapes(batch)] = compiled
        return compiled

    def _compiled(self, arguments: tuple[Any, ...]) -> Any:
        expected = None if self.expected is None else self.expected.compiled(arguments)
        return expected or self.step.lower(*arguments).compile()


def step_programs(
    program: Program,
    layout: Layout,
    algorithm: Algorithm,
    frozen: Params | None,
    lean: Program | None = None,
    note: Note = silent,
    after: BackgroundCompile | None = None,
) -> StepPrograms:
    """Return the step of a job, which begins to compile for the expected batch.

    frozen: what adapters are added to. lean: the same step with full recomputation, if the job leaves the policy open.
    after: what is compiled before it.
    """
    step, lean_step = train_step(program, layout), None if lean is None else train_step(lean, layout)
    constants = (frozen, algorithm.teacher_params) if isinstance(algorithm, HasTeacher) else (frozen,)
    batch = algorithm.expected_batch() if is_possible() else None
    if batch is None:
        return StepPrograms(step, layout, constants, None, lean_step, note)
    arguments = (program.abstract_state(layout), sharding.batch_shapes(layout.mesh, batch), *constants)
    expected = BackgroundCompile(step, layout.mesh, arguments, after)
    return StepPrograms(step, layout, constants, expected, lean_step, note)


def is_possible() -> bool:
    """Return True if a program can be compiled while others run."""
    return jax.process_count() == 1 and jax.default_backend() != "gpu"


def _shapes(batch: Batch) -> Any:
    return (jax.tree.structure(batch), *((x.shape, str(x.dtype)) for x in jax.tree.leaves(batch)))
