"""Why a step could not learn: something that it needed was missing or broken. In words, and with a class of failure.

Not a fault: rewards that are all equal, however few there are to learn from. Whoever finds a fault makes one (`rewards`
and `rollout` of samples that nobody judged); what comes of many, `learning` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from pttrainer.errors import ConfigError, DataError, ServiceLost, TrainerError, UserCodeError


class Kind(StrEnum):
    """What a fault is about; `ENDS` says how a run ends for it."""

    REWARD = "reward"
    JUDGE = "judge"
    BUDGET = "budget"
    SERVICE = "service"
    ENVIRONMENT = "environment"
    TOKENS = "tokens"
    NON_FINITE = "non-finite"
    STILL = "still"
    UNCHANGED = "unchanged"


class End(NamedTuple):
    """error: its class; hint: what to try."""

    error: type[TrainerError]
    hint: str


ENDS: Mapping[Kind, End] = {
    Kind.REWARD: End(
        UserCodeError,
        "call the function in Python with completions from samples/; one that is killed may want too much memory, and "
        "where it only takes long, raise its timeoutSeconds",
    ),
    Kind.JUDGE: End(UserCodeError, "look at the judge's url, model and key, and whether its prompt asks for a score"),
    Kind.BUDGET: End(ConfigError, "raise the judge's budget, or train fewer steps"),
    Kind.SERVICE: End(ServiceLost, "look whether the judge's url answers from where the trainer runs, in its timeout"),
    Kind.ENVIRONMENT: End(
        UserCodeError, "try the environment in Python by itself; where it only takes long, raise its timeoutSeconds"
    ),
    Kind.TOKENS: End(
        DataError, "look at the completions in samples/, at training.sequenceLength, and at what ends a completion"
    ),
    Kind.NON_FINITE: End(
        ConfigError,
        "look for broken rows, lower training.optimizer.learningRate, or set precision.compute: float32; a model whose "
        "own weights are not finite fails at step 1 whatever the batch",
    ),
    Kind.STILL: End(
        ConfigError,
        "look at the model's weights (are they all 0?), and whether the data has anything new for this model",
    ),
    Kind.UNCHANGED: End(
        ConfigError,
        "raise training.optimizer.learningRate, or set precision.params: float32, in which smaller updates count",
    ),
}  # fmt: skip


class Fault(NamedTuple):
    """what: the part of the job; detail: the error itself; missing, of: samples without a reward, and all, where it is
    about samples."""

    kind: Kind
    what: str
    detail: str
    missing: int = 0
    of: int = 0

    @property
    def words(self) -> str:
        """In a sentence."""
        if not self.of:
            return f"{self.what}: {self.detail}"
        last = f", the last: {self.detail}" if self.detail else ""
        return f"{self.what}: {self.missing} of {self.of} samples have no reward{last}"


def to_json(fault: Fault | None) -> list[Any] | None:
    """For a checkpoint."""
    return None if fault is None else list(fault)


def from_json(document: Sequence[Any] | None) -> Fault | None:
    """What `to_json` made."""
    return None if document is None else Fault(Kind(document[0]), *document[1:])
