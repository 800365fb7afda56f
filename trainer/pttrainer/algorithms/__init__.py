"""The algorithms of the trainer: one module each, with `build(context) -> Algorithm` and its `Loss`.

To add one: a module here, a line in the table, a test.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the table is read before jax may be imported (`run`)
    from ptapi.spec import PostTrainJobSpec
    from pttrainer.algorithms.algorithm import Algorithm
    from pttrainer.rollout.context import Context
    from pttrainer.train_step.objective import Objective

MODULES: dict[str, str] = {
    "sft": "pttrainer.algorithms.sft",
    "dpo": "pttrainer.algorithms.dpo",
    "kto": "pttrainer.algorithms.kto",
    "reward": "pttrainer.algorithms.reward",
    "grpo": "pttrainer.algorithms.grpo",
    "distill": "pttrainer.algorithms.distillation.distill",
    "ppo": "pttrainer.algorithms.ppo",
    "raft": "pttrainer.algorithms.raft",
    "sdpo": "pttrainer.algorithms.distillation.sdpo",
}
"""Modules by field name in `spec.algorithm`. They load on demand: sft needs no sampler."""


def build(kind: str, context: Context) -> Algorithm:
    """Build the algorithm that the job names, ready for its first step."""
    builder: Callable[[Context], Algorithm] = importlib.import_module(MODULES[kind]).build
    return builder(context)


def objective(spec: PostTrainJobSpec) -> Objective:
    """Build only the loss of the job's algorithm: no data, rewards or weights are read."""
    loss: Objective = importlib.import_module(MODULES[spec.algorithm.kind]).Loss(spec)
    return loss
