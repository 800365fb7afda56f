"""The ways to call a reward: in this process, in sandboxed child processes, or (`llm_judge`) at a service.

Each has `score(samples)`, which returns a verdict per sample whatever happens, `start(samples)` to begin work in the
background, and `close`. A builtin that cannot hang runs in this process; everything else in a `Pool`, with a wall-clock
limit.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pttrainer.rewards import Sample, Verdict
from pttrainer.runtime.reporting.step_faults import Kind
from pttrainer.sandbox.agent.agent_pool import open_pool
from pttrainer.sandbox.handlers import AT_ONCE
from pttrainer.sandbox.pool import Alive, Reply, Request

GRACE_S = 5.0
"""Extra time for a child that enforces its own limit."""


class Scorer(Protocol):
    """One reward of the job."""

    def start(self, samples: Sequence[Sample]) -> bool:
        """Begin background work that `score` will wait for, for the same samples; return False if there is none."""
        ...

    def score(self, samples: Sequence[Sample], alive: Alive) -> list[Verdict]:
        """Return a verdict per sample, in order. alive: called while waiting."""
        ...

    def facts(self) -> Mapping[str, float]:
        """Return its own metrics since the last call, for the log."""
        ...

    def close(self) -> None:
        """End what it started."""
        ...


class InProcessScorer:
    """A function that takes linear time."""

    def __init__(self, function: Callable[[Sample], float]) -> None:
        self._function = function

    def start(self, samples: Sequence[Sample]) -> bool:
        """Return False: nothing runs in the background."""
        return False

    def score(self, samples: Sequence[Sample], alive: Alive) -> list[Verdict]:
        """Return a verdict per sample."""
        return [self._verdict(sample) for sample in samples]

    def _verdict(self, sample: Sample) -> Verdict:
        try:
            return Verdict(self._function(sample))
        except Exception as error:  # one odd sample must not lose the others
            return Verdict(None, f"raised {type(error).__name__}: {error}")

    def facts(self) -> Mapping[str, float]:
        """Return no metrics."""
        return {}

    def close(self) -> None:
        """Do nothing."""


class SandboxedScorer:
    """A function in child processes. timeout_s: per completion, or per call of a batched function.

    sandboxes: of the cluster, in which the children of some kinds of sources are (`agent_pool`).
    """

    def __init__(self, field: str, source: Mapping[str, Any], timeout_s: float, sandboxes: str = "") -> None:
        self._timeout_s = timeout_s
        self._pool = open_pool(field, source, sandboxes)
        self._takes: str = self._pool.loaded["takes"]

    def start(self, samples: Sequence[Sample]) -> bool:
        """Return False: nothing runs in the background."""
        return False

    def score(self, samples: Sequence[Sample], alive: Alive) -> list[Verdict]:
        """Return a verdict per sample, from the child processes."""
        if not samples:
            return []
        messages = [sample[:3] for sample in samples]
        if self._takes == "one":
            requests = [Request(message, self._timeout_s) for message in messages]
            return [_verdict(reply) for reply in self._pool.call(requests, alive)]
        size = len(messages) if self._takes == "many" else math.ceil(len(messages) / len(self._pool))
        parts = [messages[start : start + size] for start in range(0, len(messages), size)]
        replies = self._pool.call([Request(part, self._limit_s(len(part))) for part in parts], alive)
        return [verdict for part, reply in zip(parts, replies, strict=True) for verdict in _several(reply, len(part))]

    def facts(self) -> Mapping[str, float]:
        """Return no metrics."""
        return {}

    def close(self) -> None:
        """End the child processes."""
        self._pool.close()

    def _limit_s(self, count: int) -> float:
        if self._takes == "many":
            return self._timeout_s
        return self._timeout_s * math.ceil(count / AT_ONCE) + GRACE_S


def _verdict(reply: Reply) -> Verdict:
    return Verdict(reply.value, reply.error, reply.stopped, Kind.SERVICE if reply.is_lost else Kind.REWARD)


def _several(reply: Reply, count: int) -> list[Verdict]:
    if reply.value is None:
        return [_verdict(reply)] * count
    return [
        Verdict(verdict.get("value"), verdict.get("error", ""), verdict.get("stopped", False))
        for verdict in reply.value
    ]
