"""Why a step could not learn: an input was missing or broken. Each fault has a message and a failure class.

Equal rewards are not a fault, however few samples are left to learn from. Faults are created where they are detected
(`rewards` and `rollout`, for samples without a reward); `learning_record` decides what many of them mean.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from pttrainer.errors import ConfigError, DataError, ServiceLost, TrainerError, UserCodeError


class Kind(StrEnum):
    """The cause of a fault; `ENDS` maps it to how a run ends."""

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
    """error: exception class; hint: what to try."""

    error: type[TrainerError]
    hint: str


ENDS: Mapping[Kind, End] = {
    Kind.REWARD: End(
        UserCodeError,
        "call the function in Python with completions from samples/; if it is killed, it may need too much memory; "
        "if it is only slow, raise its timeoutSeconds",
    ),
    Kind.JUDGE: End(UserCodeError, "check the judge's url, model and key, and that its prompt asks for a score"),
    Kind.BUDGET: End(ConfigError, "raise the judge's budget, or train fewer steps"),
    Kind.SERVICE: End(
        ServiceLost,
        "check that the url of the judge or of the environment answers within its timeout from where the trainer runs; "
        "of sandboxes, what their pods wait for",
    ),
    Kind.ENVIRONMENT: End(
        UserCodeError, "run the environment on its own in Python; if it is only slow, raise its timeoutSeconds"
    ),
    Kind.TOKENS: End(
        DataError, "check the completions in samples/, training.sequenceLength, and the tokens that end a completion"
    ),
    Kind.NON_FINITE: End(
        ConfigError,
        "check for bad rows, lower training.optimizer.learningRate, or set precision.compute: float32; a model whose "
        "own weights are not finite fails at step 1 with any batch",
    ),
    Kind.STILL: End(
        ConfigError,
        "check the model's weights (are they all 0?), and whether the data holds anything new for this model",
    ),
    Kind.UNCHANGED: End(
        ConfigError,
        "raise training.optimizer.learningRate, or set precision.params: float32, which keeps smaller updates",
    ),
}  # fmt: skip


class Fault(NamedTuple):
    """A fault of one step.

    what: part of the job; detail: the error itself; missing, of: samples without a reward, out of how many.
    """

    kind: Kind
    what: str
    detail: str
    missing: int = 0
    of: int = 0

    @property
    def message(self) -> str:
        """Return the fault as part of a sentence."""
        if not self.of:
            return f"{self.what}: {self.detail}"
        last = f", the last: {self.detail}" if self.detail else ""
        return f"{self.what}: {self.missing} of {self.of} samples have no reward{last}"


def to_json(fault: Fault | None) -> list[Any] | None:
    """Return the fault as JSON for a checkpoint."""
    return None if fault is None else list(fault)


def from_json(document: Sequence[Any] | None) -> Fault | None:
    """Return the fault that `to_json` encoded."""
    return None if document is None else Fault(Kind(document[0]), *document[1:])
