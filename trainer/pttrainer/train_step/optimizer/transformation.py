"""The length of a run, and learning rates, clipping and weight decay around an update rule (`update_rules`).

The decay always ends at the run's last step, because its length is the run's length and not a number of its own. Weight
decay acts on matrices only: shrinking a norm's scale towards zero regularises nothing.
"""

import math
from typing import Any

import jax
import optax

from ptapi.defaults import LEARNING_RATES
from ptapi.spec import Optimizer, Schedule, Training
from ptapi.spec.training import Ema
from pttrainer.models import Params
from pttrainer.train_step.optimizer import ema, freeze, update_rules

LORA_FACTOR = 10.0
"""Adapters learn best at about ten times the rate of all weights, whatever the rank."""
DIGITS = 6
"""Significant digits of a batch count: 0.1 epochs of 30 batches are 3, though 0.1 * 30 is slightly more in floats."""


def total_steps(training: Training, rows: int, at_once: int, updates: int = 1) -> int:
    """Return the job's steps, or those of its epochs: batches of `at_once` rows, with `updates` updates each.

    The last batch is complete, so it may start another epoch.
    """
    batches = math.ceil(round((training.epochs or 1.0) * rows / at_once, DIGITS))
    return training.steps or max(1, batches) * updates


def peak_rate(training: Training, kind: str) -> float:
    """Return the job's peak learning rate, or the default for its algorithm and what is trained."""
    usual = LEARNING_RATES[kind] * (1.0 if training.lora is None else LORA_FACTOR)
    usual *= update_rules.DEFAULTS[training.optimizer.name].rate
    return training.optimizer.learning_rate or usual


CRITIC_FACTOR = 10.0
"""A critic learns at ten times the rate of a policy whose weights are all trained: it starts from nothing."""


def critic_rate(training: Training, kind: str) -> float:
    """Return the default peak learning rate of a critic, given its policy's."""
    return peak_rate(training, kind) * (CRITIC_FACTOR if training.lora is None else 1.0)


def schedule(spec: Schedule, peak: float, total_steps: int) -> optax.Schedule:
    """Return the learning rate of step 0, 1, …: linear warm-up (the first step already moves), then the shape."""
    warmup = round(spec.warmup_fraction * total_steps)
    final = peak * spec.final_fraction
    # The last of `total_steps` steps has index total − 1 and gets the final rate.
    decay_steps = max(total_steps - 1 - warmup, 1)
    after = {
        "constant": optax.constant_schedule(peak),
        "linear": optax.linear_schedule(peak, final, decay_steps),
        "cosine": optax.cosine_decay_schedule(peak, decay_steps, alpha=spec.final_fraction),
    }[spec.kind]
    if warmup == 0:
        return after
    return optax.join_schedules([optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1)), after], [warmup])


def build(
    spec: Optimizer,
    rate: optax.Schedule,
    axes: Params | None = None,
    *,
    frozen_mask: Any = None,
    average: Ema | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Clip to the global norm, then apply the update rule; around both, freezing and the average of the weights.

    axes: of the trained weights, for rules that work on matrices. frozen_mask: as from `freeze.frozen_mask`.
    """
    rule = update_rules.build(spec, rate, _matrices, axes)
    built = optax.chain(optax.clip_by_global_norm(spec.max_grad_norm), rule)
    built = built if frozen_mask is None else freeze.wrap(built, frozen_mask)
    return built if average is None else ema.wrap(built, average.decay)


def _matrices(params: Any) -> Any:
    """Return True for weights that are matrices. Stacked layers add an axis, so norms are known by name."""
    return jax.tree_util.tree_map_with_path(lambda path, x: "scale" not in jax.tree_util.keystr(path), params)
