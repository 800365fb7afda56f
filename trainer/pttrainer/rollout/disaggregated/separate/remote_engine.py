"""The engine of a job whose samplers have pods of their own: `generate` here is `generate` there.

Samples follow from weights, prompt, number and draw, so it does not matter who draws them. Prompts that a call repeats
(to fill up a batch) are drawn once. A share is filled up to an equal one, so that samplers compile few shapes and a
share's bits do not depend on how the last call was split.

Letters: N completions, T new tokens.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ptapi.spec import PostTrainJobSpec
from pttrainer.errors import ConfigError
from pttrainer.models import Model, Params
from pttrainer.rollout.disaggregated.in_flight import remote_calls
from pttrainer.rollout.disaggregated.in_flight.remote_calls import Continuation
from pttrainer.rollout.disaggregated.in_flight.unfinished import Goal, UnfinishedGroup
from pttrainer.rollout.disaggregated.separate.client import SAMPLERS_ENV, TOKEN_ENV, SamplerClient
from pttrainer.rollout.disaggregated.separate.messages import Request
from pttrainer.rollout.disaggregated.separate.prefix_routing import PrefixRouting
from pttrainer.rollout.disaggregated.separate.sampler_pods import Delivery, SamplerPods, Version
from pttrainer.rollout.disaggregated.separate.sent_versions import CutWeights
from pttrainer.rollout.disaggregated.separate.shared_draws import FollowersPods, GatheringSender, LeadersPods, Pods
from pttrainer.rollout.disaggregated.separate.weight_sender import WeightSender
from pttrainer.rollout.disaggregated.weight_sync import decoding_keys
from pttrainer.rollout.engine import Completions, Draw, Prompt, SamplerWeights, Sampling
from pttrainer.rollout.speculative.verify import add_counts
from pttrainer.runtime.distributed import processes

if TYPE_CHECKING:
    from pttrainer.rollout.context import Context

STALLED_S = 1800.0
"""Longest time in which a sampler that beats samples nothing, where `runPolicy.hangTimeoutSeconds` says nothing; the
first call compiles."""
_VERSION = "version"


class RemoteEngine:
    """Samples in other pods, and sends weights there. Its weights are names of versions (`deliver`)."""

    def __init__(self, pods: Pods, sender: Delivery, routing: PrefixRouting, alive: Callable[[], None]) -> None:
        self._pods, self._sender, self._routing, self._alive = pods, sender, routing, alive

    def deliver(self, params: Params) -> Params:
        """Make these weights the newest version, and return its name in place of weights."""
        return {_VERSION: self._sender.deliver(params)}

    def generate(
        self, params: Params, prompts: Sequence[Prompt], samples: int, sampling: Sampling, draw: Draw
    ) -> Completions:
        """Sample `samples` completions of each prompt."""
        version: Version = params[_VERSION]
        places: dict[tuple[int, tuple[int, ...]], int] = {}
        once: list[Prompt] = []
        rows = []
        for prompt in prompts:
            place = places.setdefault((prompt.number, tuple(prompt.tokens)), len(once))
            if place == len(once):
                once.append(prompt)
            rows.append(place)
        homes = self._routing.assign(once)
        share = -(-len(once) // len(homes))
        shares = {
            home: Request(version.name, _filled([once[place] for place in of_home], share), samples, sampling, draw)
            for home, of_home in enumerate(homes)
            if of_home
        }
        replies = self._pods.draw(version, shares, self._alive)
        return _joined({home: (homes[home], replies[home]) for home in sorted(shares)}, rows, samples)

    def go_on(
        self, weights: SamplerWeights, groups: Sequence[UnfinishedGroup], sampling: Sampling, seed: int, goal: Goal
    ) -> None:
        """Sample with these weights, in place, until the goal is reached (`in_flight`). groups: all in flight."""
        if goal.is_reached(groups):
            return
        version: Version = weights.params[_VERSION]
        left = [group for group in groups if not group.is_complete]
        homes = self._routing.assign([Prompt(group.question.tokens, group.number) for group in left])
        at_once = max(1, -(-len(groups) // len(homes)) // 2)
        parts = {home: [left[place] for place in of_home] for home, of_home in enumerate(homes) if of_home}
        shares = {
            home: Continuation(
                version.name, part, sampling, seed, remote_calls.share_of(goal, groups, left, len(part)), at_once
            )
            for home, part in parts.items()
        }
        replies = self._pods.draw(version, shares, self._alive)
        for home, part in parts.items():
            remote_calls.append(part, replies[home], weights.version)

    def forget(self) -> None:
        """Free what samplers keep of prompts."""
        self._routing.forget()
        self._pods.forget()

    def facts(self) -> dict[str, float]:
        """Return what was sent, and who was away, since the last call."""
        return {**self._sender.facts(), **self._pods.facts()}

    def close(self) -> None:
        """End threads and connections, and remove files."""
        self._pods.close()
        self._sender.close()


def remote_engine(context: Context, environ: MutableMapping[str, str] = os.environ) -> RemoteEngine:
    """Build the engine with the samplers that the environment names; of several processes the leader speaks to them.

    Raises ConfigError.
    """
    spec, model, to_others = context.spec, context.model, context.messages
    addresses = sampler_addresses("`python -m pttrainer sampler --spec FILE --index I`", environ)
    token = processes.secret(TOKEN_ENV, "spec.rollout.separate", environ)
    routing = PrefixRouting(len(addresses), keeps_prompts=spec.environment is not None)
    cut = CutWeights(model, context.mesh)
    if to_others is not None and not context.leader:
        return RemoteEngine(FollowersPods(to_others), GatheringSender(partial(_take_part, cut)), routing, context.alive)
    stalled_s = spec.run_policy.hang_timeout_seconds or STALLED_S
    shapes = shapes_digest(model)
    clients = [SamplerClient(address, token, shapes, stalled_s) for address in addresses]
    context.note(f"{len(clients)} samplers with pods of their own: {', '.join(addresses)}")
    sender = WeightSender(cut, clients, versions_in_use(spec))
    pods = SamplerPods(clients, sender, context.note)
    here = pods if to_others is None else LeadersPods(pods, to_others)
    return RemoteEngine(here, sender, routing, context.alive)


def _take_part(cut: CutWeights, params: Params, count: int) -> None:
    """Run the programs by which `WeightSender` makes a version: what never changes is cut for the first one."""
    if count == 0:
        cut.take_part(params, static=True)
    cut.take_part(params, static=False)


def sampler_addresses(by_hand: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return where the samplers listen. by_hand: the command that starts one. Raises ConfigError."""
    addresses = [text.strip() for text in environ.get(SAMPLERS_ENV, "").split(",") if text.strip()]
    if not addresses:
        raise ConfigError(
            f"environment: {SAMPLERS_ENV}: not set, and rollout.placement is separate; accepted: the samplers' "
            "addresses, host:port, separated by commas; hint: the operator sets it; by hand, start "
            f"{by_hand} first"
        )
    return addresses


def versions_in_use(spec: PostTrainJobSpec) -> int:
    """Return how many versions batches may be drawn with at once, adapters included."""
    updates = spec.algorithm.updates_per_batch
    return max(1, spec.rollout.steps_ahead(updates) // updates)


def shapes_digest(model: Model) -> str:
    """Return a digest of the weights that a sampler of this model holds: names, shapes and number formats."""
    lines = [f"{name} {layer} {x.shape} {x.dtype}" for (name, layer), x in decoding_keys(model).items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _filled(prompts: Sequence[Prompt], share: int) -> list[Prompt]:
    return [*prompts, *[prompts[-1]] * (share - len(prompts))]


def _joined(replies: Mapping[int, tuple[Sequence[int], Completions]], rows: Sequence[int], samples: int) -> Completions:
    """Return the completions of all shares, in the order of the prompts. rows: each prompt's place among all shares."""
    where = {place: (home, row) for home, (places, _) in replies.items() for row, place in enumerate(places)}
    parts = [done for _, done in replies.values()]
    width = max(done.tokens_NT.shape[1] for done in parts)
    chosen = [
        (replies[home][1], row * samples + g) for home, row in map(where.__getitem__, rows) for g in range(samples)
    ]
    facts: dict[str, float] = {}
    for done in parts:
        facts = add_counts(facts, done.facts)
    has_routes = all(done.routes is not None for done in parts)
    return Completions(
        np.stack([_widened(done.tokens_NT[row], width) for done, row in chosen]),
        np.stack([_widened(done.logps_NT[row], width) for done, row in chosen]),
        np.array([done.lengths_N[row] for done, row in chosen], np.int32),
        np.array([done.ended_N[row] for done, row in chosen], bool),
        facts,
        [done.routes[row] for done, row in chosen if done.routes is not None] if has_routes else None,
        [
            of_prompts[row]
            for home, row in map(where.__getitem__, rows)
            if (of_prompts := replies[home][1].prompt_routes) is not None
        ]
        if has_routes
        else None,
    )


def _widened(row_T: np.ndarray, width: int) -> np.ndarray:
    return np.pad(row_T, (0, width - len(row_T)))
