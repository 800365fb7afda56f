"""Samplers of a trainer of several processes: the leader alone speaks to them, and all processes get what they draw.

Weights are gathered by programs that all processes run together (`GatheringSender`); the leader keeps and
sends them. Samples come to the leader, from whichever sampler, and go on to the others by the run's own messages
(`leader_messages`), off the devices: batches that are sampled ahead come on a thread beside the one that trains. What
ends the leader's call ends it on all processes, with the same error.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from pttrainer import errors
from pttrainer.errors import TrainerError
from pttrainer.models import Params
from pttrainer.rollout.disaggregated.in_flight import remote_calls
from pttrainer.rollout.disaggregated.in_flight.remote_calls import Continued
from pttrainer.rollout.disaggregated.separate import messages
from pttrainer.rollout.disaggregated.separate.sampler_pods import SamplerPods, Shares, Version
from pttrainer.rollout.disaggregated.separate.sent_versions import NewestLeaves
from pttrainer.rollout.engine import Completions
from pttrainer.runtime.distributed.leader_messages import LeaderMessages

_ERRORS = {
    kind.__name__: kind for kind in (errors.ConfigError, errors.ServiceLost, errors.StorageError, errors.TransferError)
}


class Pods(Protocol):
    """Who draws the shares of a call."""

    def draw(self, version: Version, shares: Shares, alive: Callable[[], None]) -> dict[int, Any]:
        """Return what each share draws: completions, or what was added to samples."""
        ...

    def forget(self) -> None:
        """Let samplers drop kept prompts."""
        ...

    def facts(self) -> dict[str, float]:
        """Return what there is to log since the last call."""
        ...

    def close(self) -> None:
        """End threads and connections."""
        ...


class LeadersPods:
    """The samplers, on the leader."""

    def __init__(self, pods: SamplerPods, to_others: LeaderMessages) -> None:
        self._pods, self._to_others = pods, to_others

    def draw(self, version: Version, shares: Shares, alive: Callable[[], None]) -> dict[int, Any]:
        """Draw, and send the others what came. Raises as `SamplerPods.draw` does."""
        try:
            replies = self._pods.draw(version, shares, self._to_others.beating(alive))
        except TrainerError as error:
            self._to_others.send(messages.encode({"error": type(error).__name__, "text": str(error)}))
            raise
        self._to_others.send(encode_replies(replies))
        return replies

    def forget(self) -> None:
        """Let samplers drop kept prompts."""
        self._pods.forget()

    def facts(self) -> dict[str, float]:
        """Return who was away."""
        return self._pods.facts()

    def close(self) -> None:
        """End threads and connections."""
        self._pods.close()


class FollowersPods:
    """The same on the other processes, which wait for what the leader got."""

    def __init__(self, from_leader: LeaderMessages) -> None:
        self._from_leader = from_leader

    def draw(self, version: Version, shares: Shares, alive: Callable[[], None]) -> dict[int, Any]:
        """Return what the leader's samplers drew. Raises the leader's error."""
        message = messages.decode(self._from_leader.receive(alive))
        if "error" in message.head:
            raise _ERRORS.get(message.head["error"], TrainerError)(message.head["text"])
        return decode_replies(message)

    def forget(self) -> None:
        """Do nothing: the leader does."""

    def facts(self) -> dict[str, float]:
        """Return nothing: the leader logs."""
        return {}

    def close(self) -> None:
        """Do nothing."""


class GatheredVersion(NamedTuple):
    """A version, on a process that does not send it."""

    name: str


class GatheringSender:
    """Takes part in gathering the weights that the leader sends.

    take_part(params, count): run the programs by which the leader makes a version, `count` versions after the first.
    """

    def __init__(self, take_part: Callable[[Params, int], None]) -> None:
        self._take_part, self._newest = take_part, NewestLeaves()
        self._count = 0

    def deliver(self, params: Params) -> GatheredVersion:
        """Run the programs that the leader runs, in the same order."""
        if self._newest.replace(params):
            self._take_part(params, self._count)
            self._count += 1
        return GatheredVersion(f"the leader's version {self._count - 1}")

    def facts(self) -> dict[str, float]:
        """Return nothing: the leader logs."""
        return {}

    def close(self) -> None:
        """Do nothing."""


def encode_replies(replies: Mapping[int, Completions] | Mapping[int, Continued]) -> list[bytes | memoryview]:
    """Return the message of what a call drew, by share."""
    bodies = [b"".join(_encoded(done)) for done in replies.values()]
    kind = {"continued": any(isinstance(done, Continued) for done in replies.values())}
    return messages.encode({"shares": list(replies), **kind}, [np.frombuffer(body, np.uint8) for body in bodies])


def _encoded(reply: Completions | Continued) -> list[bytes | memoryview]:
    return remote_calls.encode_reply(reply) if isinstance(reply, Continued) else messages.encode_completions(reply)


def decode_replies(message: messages.Message) -> dict[int, Any]:
    """Return what a call drew, by share."""
    decode = remote_calls.decode_reply if message.head["continued"] else messages.decode_completions
    done = [decode(messages.decode(body.tobytes())) for body in message.arrays]
    return dict(zip(message.head["shares"], done, strict=True))
