"""Steps whose loss or gradient is not finite: skipped on the devices, counted, and the end of the run when they go on.

The decision is part of the compiled step (`choose`): a select per array, which the compiler fuses into the update
that it writes anyway, so a good step has the same bits and costs the same. What goes on is the step counter and the
schedule's; moments, weights and averages stay as they were. The counts are in the state, hence in checkpoints, and
whole on every process: all of them stop at the same step.

Left out: mending a gradient (dropping the values that are not finite). What is left would be a step nobody asked for.
"""

from __future__ import annotations

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

CRITIC_GRAD_NORM = "critic/grad_norm"
IN_A_ROW = "skipped_in_a_row"
"""What a step says beside its metrics: how many steps up to it were skipped, one after the other."""


def choose(is_finite: Array, new: Any, old: Any) -> Any:
    """`new` where the step is good and `old` where it is not, array by array; schedules count on."""

    def one(after: Any, before: Any) -> Any:
        if isinstance(after, optax.ScaleByScheduleState):
            return after
        return jnp.where(is_finite, after, before)

    return jax.tree.map(one, new, old, is_leaf=lambda x: isinstance(x, optax.ScaleByScheduleState))


def counted(is_finite: Array, skipped_2: Array) -> Array:
    """Skipped steps of the run and, after them, those in a row, with this step among them."""
    bad = (~is_finite).astype(jnp.int32)
    return jnp.stack([skipped_2[0] + bad, (skipped_2[1] + 1) * bad])


def facts(skipped_2: Array) -> dict[str, Array]:
    """The counts as a step's metrics."""
    return {run_directory.SKIPPED_STEPS: skipped_2[0], IN_A_ROW: skipped_2[1]}


def warning(step: int, values: Mapping[str, float], limit: int) -> str:
    """The line for a step that was skipped; empty for one that was not."""
    in_a_row = int(values[IN_A_ROW])
    if not in_a_row:
        return ""
    return (
        f"warning: step {step}: {broken(values)} not finite; the step is skipped and the weights stay as they were "
        f"({in_a_row} in a row, the run stops at {limit}); hint: look for broken rows, or lower the learning rate"
    )


def stop(step: int, values: Mapping[str, float], file: str, good: str) -> ConfigError:
    """The end of a run that makes no more progress. file: where the last batch is; good: the checkpoint that is."""
    count, rate = int(values[IN_A_ROW]), values[run_directory.LEARNING_RATE]
    return ConfigError(
        f"spec.training.maxNonFiniteSteps: {count}: {broken(values)} not finite in {count} steps in a row, the last "
        f"of them step {step} (learning rate {rate:.2e}); all were skipped, the weights are those of step "
        f"{step - count}, the checkpoint that is good: {good}; the batch is in {file}; hint: look at that batch; if it "
        "is sound, lower training.optimizer.learningRate or maxGradNorm, lengthen schedule.warmupFraction, or set "
        "precision.compute: float32; a model whose own weights are not finite fails at step 1 whatever the batch"
    )


def rows(batch: Batch, tokenizer: Tokenizer) -> bytes:
    """A batch as JSON Lines: a row of the batch is a line, with every array of it and the text of each example."""
    fields = {**batch._replace(prompts=None)._asdict(), "prompt_B": _prompts(batch)}
    arrays = {name.rsplit("_", 1)[0]: np.asarray(x) for name, x in fields.items() if x is not None}
    lines = []
    for i in range(len(arrays["tokens"])):
        row: dict[str, Any] = {name: [_number(value) for value in x[i].tolist()] for name, x in arrays.items()}
        tokens, segments = arrays["tokens"][i], arrays["segment_ids"][i]
        texts = [tokenizer.decode(tokens[segments == s].tolist(), skip_special=False) for s in np.unique(segments) if s]
        lines.append(json.dumps({"row": i, "text": texts, **row}, ensure_ascii=False))
    return ("\n".join(lines) + "\n").encode()


def _prompts(batch: Batch) -> np.ndarray | None:
    """What each row continues, padded; None where rows are whole."""
    return None if batch.prompts is None else np.repeat(np.asarray(batch.prompts.tokens_PT), batch.samples, axis=0)


def broken(values: Mapping[str, float]) -> str:
    """Which figures of a skipped step are not finite, with their verb."""
    names = [
        name
        for name in (run_directory.LOSS, run_directory.GRAD_NORM, CRITIC_GRAD_NORM)
        if not math.isfinite(values.get(name, 0.0))
    ]
    return " and ".join(names) + (" is" if len(names) == 1 else " are")


def _number(value: float) -> float | str:
    """JSON has no word for what is not finite, and here it is what one looks for."""
    return value if math.isfinite(value) else str(value)
