"""One line where a figure of reinforcement learning leaves its healthy range: what it usually means, what to try.

A figure has to stay outside for some steps in a row, because a single step is noise; then its line comes once in an
attempt and never again. Where several updates use one rollout, a figure counts where it is news: what the samples
are like at the first update alone, what the clip takes away at the later ones, because at the first there is nothing to
clip. The ranges are rules of thumb, the same for every job: docs/reference/metrics.md has the table.
Left out: losses, which say nothing here, and figures whose health depends on the task (reward, length, tools used).
"""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from ptapi import run_directory

FIRST = f"{run_directory.SECONDS}generate"
"""A step with this metric is the first update of its rollout."""


class Range(NamedTuple):
    """The healthy range of a metric, both ends included.

    steps: consecutive steps outside before it is reported; at: which updates of a rollout count.
    """

    metric: str
    low: float
    high: float
    steps: int
    means: str
    attempt: str
    at: Literal["first", "later", "every"] = "first"

    @property
    def bounds(self) -> str:
        """Return the range as text."""
        if math.isinf(self.high):
            return f"at least {self.low:g}"
        return f"at most {self.high:g}" if math.isinf(self.low) else f"{self.low:g} to {self.high:g}"


NONE, ANY = -math.inf, math.inf
RANGES = (
    Range(
        "reward/missing", NONE, 0.1, 3,
        "rewards fail or take too long, and those samples teach nothing",
        "read the lines `reward NAME:` above; fix the function, or raise its timeoutSeconds",
    ),
    Range(
        "groups/all_wrong", NONE, 0.8, 5,
        "the prompts are too hard for this model: groups without a right answer teach nothing",
        "easier prompts, sft first, a larger groupSize, or partial credit",
    ),
    Range(
        "groups/all_right", NONE, 0.8, 5,
        "the prompts have become too easy: groups without a wrong answer teach nothing",
        "harder prompts, dynamicSampling, or stop here",
    ),
    Range(
        "truncated", NONE, 0.3, 5,
        "completions are cut before they end, so they are scored unfinished",
        "raise rollout.maxNewTokens, penalize length (grpo.overlong or the reward `length`), or check the end tokens",
    ),
    Range(
        "entropy", 0.01, ANY, 5,
        "the policy has collapsed: its samples are nearly identical and it no longer explores",
        "a lower learning rate, clipHigh 0.28, beta 0.01, and an earlier checkpoint",
        "every",
    ),
    Range(
        "kl", NONE, 0.5, 5,
        "the policy is far from its reference, where rewards are gamed and language breaks",
        "a lower learning rate, a higher beta; read the samples",
        "every",
    ),
    Range(
        "clip_fraction", NONE, 0.3, 5,
        "updates are too large: most of the gradient is clipped away",
        "a lower learning rate, or fewer updatesPerBatch",
        "later",
    ),
    Range(
        "sampler/kl", NONE, 0.01, 3,
        "sampler and trainer disagree about the same tokens",
        "precision float32 for a step, to tell rounding from weights that did not arrive; topP 1 and topK 0",
    ),
    Range(
        "sampler/weight", 0.9, 1.1, 3,
        "importance weights drift from 1: what is trained is not what was sampled",
        "as for sampler/kl, and fresher samples",
    ),
    Range(
        "grad_norm", 1e-8, ANY, 5,
        "nothing is learned: all advantages are 0, or the rewards are all equal",
        "look at groups/all_right, groups/all_wrong and reward/missing",
        "every",
    ),
    Range(
        "tools/failed", NONE, 0.5, 5,
        "most tool calls return an error",
        "read the samples: another environment.toolFormat, clearer descriptions of arguments, or sft on calls first",
    ),
    Range(
        "episodes/failed", NONE, 0.1, 3,
        "episodes end without a reward, because their environment fails or takes too long",
        "read the lines `environment:` above; fix it, or raise environment.timeoutSeconds",
    ),
)  # fmt: skip
"""The ranges that `RlHealth` checks."""


class RlHealth:
    """Check the metrics of each step against `RANGES`."""

    def __init__(self) -> None:
        self._outside = dict.fromkeys((one.metric for one in RANGES), 0)
        self._reported: set[str] = set()

    def report(self, values: Mapping[str, float]) -> list[str]:
        """Return the lines that this step triggers."""
        now = ("every", "first" if FIRST in values else "later")
        looked_at = (one for one in RANGES if one.metric in values and one.at in now)
        return [line for one in looked_at if (line := self._look(one, values[one.metric]))]

    def _look(self, one: Range, value: float) -> str:
        is_healthy = math.isnan(value) or one.low <= value <= one.high
        self._outside[one.metric] = 0 if is_healthy else self._outside[one.metric] + 1
        if self._outside[one.metric] < one.steps or one.metric in self._reported:
            return ""
        self._reported.add(one.metric)
        return (
            f"watch: {one.metric} is {value:.4g} for {one.steps} steps (healthy: {one.bounds}): {one.means}; "
            f"hint: {one.attempt}"
        )
