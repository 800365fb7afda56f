"""Rollouts that are finished, in the run directory: what a killed run has sampled since its checkpoint is not lost.

A run goes on from its newest checkpoint, and takes the steps behind it again. Each of them needs the samples that it
had before, because weights, prompts and keys are the same: so it takes the file of that step, if the weights are those
that drew it.

    <run>/rollouts/step-<step>.json    the rollout as a checkpoint would hold it, the prompts drawn by then, and which
                                       weights drew it (`corners`)

Other weights (of another mesh, fewer slices, a longer schedule) draw their samples anew, and replace the file. The
files of steps that a checkpoint has behind it are removed. Left out: rollouts that are not finished, and those with
images, whose pixels would be most of the file; they are drawn again.
"""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ptapi import run_directory
from pttrainer.models import Params
from pttrainer.rollout import rollout_data
from pttrainer.rollout.engine import SamplerWeights
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.runtime.distributed.checksum import digest
from pttrainer.runtime.distributed.leader_messages import LeaderMessages
from pttrainer.runtime.io.place import Place

DrawRollout = Callable[[int, SamplerWeights], Rollout]
CORNER = 64
"""Entries along each axis of what is compared of an array: an update that differs changes all of its weights."""


class Prompts(Protocol):
    """The prompts of a run, of which a rollout draws the next."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, as JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        ...


class FinishedRollouts:
    """The files of one run.

    leader: True on the process that reads and writes. messages: to the others, if there are any. note: log a line for
    people. alive: signal that a process which waits for the leader does not hang.
    """

    def __init__(
        self,
        place: Place,
        messages: LeaderMessages | None,
        note: Callable[[str], None],
        alive: Callable[[], None],
        *,
        leader: bool,
    ) -> None:
        self._place, self._messages, self._leader = place, messages, leader
        self._note, self._alive = note, alive
        self._earlier: frozenset[int] | None = None
        self._steps: set[int] = set()
        self._writer = ThreadPoolExecutor(1, "finished-rollouts")
        self._written: Future[None] | None = None

    def or_drawn(self, step: int, weights: SamplerWeights, prompts: Prompts, draw: DrawRollout) -> Rollout:
        """Return the rollout that an earlier attempt finished with these weights, else a new one, and keep that.

        All processes call it together, in the same order. Raises StorageError.
        """
        identity = np.asarray(weights.identity).tobytes().hex()
        kept = self._read(step, identity)
        if kept is not None:
            prompts.restore(kept["prompts"])
            self._note(f"step {step + 1}: takes the samples that an earlier attempt drew with the same weights")
            return _without_machine(rollout_data.from_json(kept["rollout"]))
        rollout = draw(step, weights)
        if self._leader and rollout.batch.images is None:
            self._write(step, {"weights": identity, "prompts": prompts.state(), "rollout": rollout})
        return rollout

    def forget(self, before: int) -> None:
        """Remove the files of steps that a checkpoint has behind it: those before step `before`."""
        for step in sorted(step for step in self._steps if step < before):
            self._place.remove(run_directory.rollout_file(step))
            self._steps.remove(step)

    def close(self) -> None:
        """Wait for the last file."""
        self._writer.shutdown()

    def _read(self, step: int, identity: str) -> dict[str, Any] | None:
        """Return the leader's file of a step; None if there is none of these weights."""
        if self._earlier is None:
            self._earlier = frozenset(json.loads(self._from_leader(self._list)))
            self._steps |= self._earlier
        if step not in self._earlier:
            return None
        content = self._from_leader(lambda: self._content(step, identity))
        kept: dict[str, Any] | None = json.loads(content) if content else None
        return kept

    def _list(self) -> bytes:
        names = set(self._place.names(run_directory.ROLLOUTS))
        steps = (_step(name) for name in names)
        return json.dumps([x for x in steps if x is not None and run_directory.rollout_file(x) in names]).encode()

    def _content(self, step: int, identity: str) -> bytes:
        """Return the file of a step if it can be read and these weights drew it, else nothing."""
        content = self._place.read(run_directory.rollout_file(step)) or b""
        try:
            kept = json.loads(content)
            return content if kept["weights"] == identity and {"prompts", "rollout"} <= kept.keys() else b""
        except (ValueError, TypeError, KeyError):
            return b""

    def _from_leader(self, make: Callable[[], bytes]) -> bytes:
        if self._messages is None:
            return make()
        if not self._leader:
            return self._messages.receive(self._alive)
        content = make()
        self._messages.send([content])
        return content

    def _write(self, step: int, document: Mapping[str, Any]) -> None:
        """Write a file beside what the run does next, once the one before is there."""
        if self._written is not None:
            self._written.result()
        self._steps.add(step)
        self._written = self._writer.submit(self._save, step, document)

    def _save(self, step: int, document: Mapping[str, Any]) -> None:
        whole = {**document, "rollout": rollout_data.to_json(document["rollout"])}
        self._place.write(run_directory.rollout_file(step), json.dumps(whole).encode())


def kept(
    finished: FinishedRollouts | None, prompts: Prompts, draw: DrawRollout
) -> tuple[DrawRollout, Callable[[Params], Array] | None]:
    """Return `draw` and `identify` of a `Pipeline` whose rollouts are kept; plain ones where nothing keeps them."""
    if finished is None:
        return draw, None
    return partial(finished.or_drawn, prompts=prompts, draw=draw), corners


def _without_machine(rollout: Rollout) -> Rollout:
    """Return the rollout without what drawing it took, which it did not take now."""
    facts = {name: x for name, x in rollout.facts.items() if not run_directory.is_of_machine(name)}
    return replace(rollout, facts=facts)


def _step(name: str) -> int | None:
    """Return the step that a file's name holds; None for another file."""
    digits = name.rpartition("-")[2].removesuffix(".json")
    return int(digits) if digits.isdecimal() else None


@jax.jit
def corners(params: Params) -> Array:
    """Return which weights these are: a checksum of the first entries of each array, the same on every mesh."""
    boxes = (x[tuple(slice(CORNER) for _ in x.shape)] for x in jax.tree.leaves(params))
    return jnp.stack([digest(box) for box in boxes])
