"""A line when the loss jumps: which step, how far, and what it usually means.

The rule, on the steps before: m is the median of the last `WINDOW` losses and s = 1.4826 · their median absolute
deviation (the standard deviation, if they were normal). A step is a spike if its loss is above

    m + max(8 · s, 0.25 · |m|)

and m is not 0: where most steps lost nothing at all, as with a hinge, there is nothing to compare with.
Eight deviations, because losses of small batches have long tails; a quarter of the median, because late in a smooth
run s is next to nothing. Medians do not move when a spike is among the values, and a loss that falls fast is below
its median, not above. Steps without a finite loss are not among them (`nonfinite` tells of those).

At most one line in `SILENCE` steps. An attempt starts with no memory and says nothing in its first `LEAST` steps.
Nothing is done about a spike: it is a report.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping

from ptapi import run_directory
from ptapi.spec import PostTrainJobSpec

WINDOW = 64
LEAST = 20
SILENCE = 25
DEVIATIONS = 8.0
SHARE = 0.25

MEANINGS = (
    "gradients were clipped; one such step that comes back within a few is a hard or broken batch, several or a level "
    "that stays mean that the learning rate is too high; hint: look at the rows of that step, lower "
    "training.optimizer.learningRate or lengthen schedule.warmupFraction",
    "its gradient was small, so the batch is unlike the others (another language, repeated or cut text) and the "
    "weights are sound; hint: look at the data",
)


def of_job(spec: PostTrainJobSpec) -> LossSpikes | None:
    """Return a spike detector, or None if the loss depends on current samples and steps do not compare."""
    return None if spec.algorithm.is_on_policy else LossSpikes(spec.training.optimizer.max_grad_norm)


class LossSpikes:
    """Detect spikes among the losses of the last steps."""

    def __init__(self, max_grad_norm: float) -> None:
        self._clip = max_grad_norm
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._silent_until = 0

    def report(self, step: int, values: Mapping[str, float]) -> str:
        """Return the log line for this step; empty if there is nothing to report."""
        loss = values[run_directory.LOSS]
        if not math.isfinite(loss):
            return ""
        before = list(self._losses)
        self._losses.append(loss)
        if len(before) < LEAST or step < self._silent_until:
            return ""
        median = statistics.median(before)
        spread = 1.4826 * statistics.median(abs(x - median) for x in before)
        if median == 0.0 or loss - median <= max(DEVIATIONS * spread, SHARE * abs(median)):
            return ""
        self._silent_until = step + SILENCE
        return self._line(step, values, median, spread, len(before))

    def _line(self, step: int, values: Mapping[str, float], median: float, spread: float, count: int) -> str:
        loss, norm, rate = (
            values[name] for name in (run_directory.LOSS, run_directory.GRAD_NORM, run_directory.LEARNING_RATE)
        )
        times = f", {(loss - median) / spread:.0f} times their spread" if spread > 0 else ""
        return (
            f"warning: step {step}: loss {loss:.4g} is {loss - median:.4g} above {median:.4g}, the median of the "
            f"{count} steps before{times} (gradient norm {norm:.3g}, learning rate {rate:.2e}); usually: "
            f"{MEANINGS[0] if norm > self._clip else MEANINGS[1]}; the next {SILENCE} steps are not reported"
        )
