"""Steps with a non-finite loss or gradient: skipped on the devices and counted; too many in a row end the run.

The decision is part of the compiled step (`choose`): a select per array, which the compiler fuses into the update that
it writes anyway, so a good step has the same bits and costs the same. The step counter and the schedule's advance;
moments, weights and averages stay as they were. The counts are in the state, hence in checkpoints, and replicated on
every process: all of them stop at the same step.

Left out: repairing a gradient (dropping the non-finite values). The remaining gradient would point elsewhere.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ptapi import run_directory
from pttrainer.batch import Batch
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.errors import ConfigError
from pttrainer.train_step.optimizer.adam import AdamState

CRITIC_GRAD_NORM = "critic/grad_norm"
IN_A_ROW = "skipped_in_a_row"
"""Internal metric: the number of consecutive skipped steps up to this one."""


_LEFT = (optax.ScaleByScheduleState, AdamState)


def choose(is_finite: Array, new: Any, old: Any) -> Any:
    """Return `new` if the step is finite and `old` if not, array by array; schedules count on, Adam has chosen."""

    def one(after: Any, before: Any) -> Any:
        if isinstance(after, _LEFT):
            return after
        return jnp.where(is_finite, after, before)

    return jax.tree.map(one, new, old, is_leaf=lambda x: isinstance(x, _LEFT))


def counted(is_finite: Array, skipped_2: Array) -> Array:
    """Return the skipped steps of the run and those in a row, this step included."""
    bad = (~is_finite).astype(jnp.int32)
    return jnp.stack([skipped_2[0] + bad, (skipped_2[1] + 1) * bad])


def facts(skipped_2: Array) -> dict[str, Array]:
    """Return the counts as metrics of a step."""
    return {run_directory.SKIPPED_STEPS: skipped_2[0], IN_A_ROW: skipped_2[1]}


def warning(step: int, values: Mapping[str, float], limit: int) -> str:
    """Return the log line for a skipped step; empty if it was not skipped."""
    in_a_row = int(values[IN_A_ROW])
    if not in_a_row:
        return ""
    return (
        f"warning: step {step}: {broken(values)} not finite; the step is skipped and the weights stay as they were "
        f"({in_a_row} in a row, the run stops at {limit}); hint: check for broken rows, or lower the learning rate"
    )


def stop(step: int, values: Mapping[str, float], file: str, good: str) -> ConfigError:
    """Return the error that ends a run without progress. file: the last batch; good: the last good checkpoint."""
    count, rate = int(values[IN_A_ROW]), values[run_directory.LEARNING_RATE]
    return ConfigError(
        f"spec.training.maxNonFiniteSteps: {count}: {broken(values)} not finite in {count} steps in a row, the last "
        f"of them step {step} (learning rate {rate:.2e}); all were skipped, the weights are those of step "
        f"{step - count}; last good checkpoint: {good}; the batch is in {file}; hint: check that batch; if it "
        "is valid, lower training.optimizer.learningRate or maxGradNorm, lengthen schedule.warmupFraction, or set "
        "precision.compute: float32; a model with non-finite weights fails at step 1 whatever the batch"
    )


def rows(batch: Batch, tokenizer: Tokenizer) -> bytes:
    """Return a batch as JSON Lines: a line per row, with its arrays but pixels and experts, and each example's text."""
    fields = {**batch._replace(prompts=None, images=None, routes_BTLk=None)._asdict(), "prompt_B": _prompts(batch)}
    arrays = {name.rsplit("_", 1)[0]: np.asarray(x) for name, x in fields.items() if x is not None}
    lines = []
    for i in range(len(arrays["tokens"])):
        row: dict[str, Any] = {name: [_number(value) for value in x[i].tolist()] for name, x in arrays.items()}
        tokens, segments = arrays["tokens"][i], arrays["segment_ids"][i]
        texts = [tokenizer.decode(tokens[segments == s].tolist(), skip_special=False) for s in np.unique(segments) if s]
        lines.append(json.dumps({"row": i, "text": texts, **row}, ensure_ascii=False))
    return ("\n".join(lines) + "\n").encode()


def _prompts(batch: Batch) -> np.ndarray | None:
    """Return the padded prompt of each row; None if rows contain their prompts."""
    return None if batch.prompts is None else np.repeat(np.asarray(batch.prompts.tokens_PT), batch.samples, axis=0)


def broken(values: Mapping[str, float]) -> str:
    """Return the names of the non-finite metrics of a skipped step, with their verb."""
    names = [
        name
        for name in (run_directory.LOSS, run_directory.GRAD_NORM, CRITIC_GRAD_NORM)
        if not math.isfinite(values.get(name, 0.0))
    ]
    return " and ".join(names) + (" is" if len(names) == 1 else " are")


def _number(value: float) -> float | str:
    """Return non-finite values as text: JSON lacks them, and here they matter."""
    return value if math.isfinite(value) else str(value)
