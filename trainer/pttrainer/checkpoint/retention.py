"""Decide when a checkpoint is written and which ones are kept.

Written: every N steps, at the end, after so much time, and after an evaluation that is among the best. Kept: the
newest, every k-th, the best, and the newest before steps that cannot learn. All processes must decide alike, because
saving is done together; what one process knows alone (its clock) is shared with all. The best are listed in `best.json`
before their checkpoint is written: an entry whose checkpoint a kill prevented is dropped on resume.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ptapi import run_directory
from ptapi.run_directory import Best, BestRef
from ptapi.spec import BestCheckpoints, Checkpoint
from pttrainer.errors import ConfigError
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io.place import Place


class CheckpointPolicy:
    """The policy for a run's checkpoints. `place`: the run directory; only the leader writes there."""

    def __init__(self, spec: Checkpoint, place: Place, *, leader: bool) -> None:
        self._spec, self._place, self._leader = spec, place, leader
        self._best = _read(spec.best, place)
        self._began = time.monotonic()
        self.good = 0
        """The last step that could learn: the newest checkpoint up to it is kept while later steps cannot."""

    @property
    def best(self) -> BestRef | None:
        """Return the best of all evaluations so far."""
        return self._best.checkpoints[0] if self._best is not None and self._best.checkpoints else None

    def is_due(self, done: int, total: int, evaluated: Mapping[str, float]) -> bool:
        """Return True if step `done` needs a checkpoint. `evaluated`: metrics of an evaluation after it, if any."""
        is_best = self._enter(done, evaluated)
        return is_best or done == total or done % self._spec.every_steps == 0 or self._is_time()

    def began(self) -> None:
        """Record that a save began."""
        self._began = time.monotonic()

    def resumed(self, steps: Sequence[int], step: int, good: int = 0) -> None:
        """Resume after `step` with the checkpoints of these steps; forget entries of others."""
        self.good = good
        if self._best is not None:
            kept = [entry for entry in self._best.checkpoints if entry.step in steps and entry.step <= step]
            self._best = self._best.model_copy(update={"checkpoints": kept})

    def stays(self, steps: Sequence[int]) -> list[bool]:
        """Return which of these checkpoints (ascending) to keep."""
        best = [] if self._best is None else [entry.step for entry in self._best.checkpoints]
        every = self._spec.keep_every_steps
        newest = {*steps[-self._spec.keep :], max((step for step in steps if step <= self.good), default=0)}
        return [step in newest or step in best or (every is not None and step % every == 0) for step in steps]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Return the same in Orbax's interface."""
        return self.stays([checkpoint.step for checkpoint in checkpoints])

    def _is_time(self) -> bool:
        after = self._spec.every_seconds
        return after is not None and processes.any_process(time.monotonic() - self._began >= after)

    def _enter(self, done: int, evaluated: Mapping[str, float]) -> bool:
        if self._best is None or self._spec.best is None or not evaluated:
            return False
        value = evaluated.get(self._best.metric)
        if value is None:
            raise ConfigError(
                f"spec.checkpoint.best.metric: {self._best.metric}: no such metric of this evaluation; "
                f"accepted: {', '.join(sorted(evaluated))}"
            )
        if not math.isfinite(value):
            return False
        sign = 1 if self._best.mode == "min" else -1
        # Of equals the earlier one stays: sorting is stable.
        entries = sorted(
            [*self._best.checkpoints, BestRef(step=done, value=value)], key=lambda entry: sign * entry.value
        )[: self._spec.best.keep]
        if done not in [entry.step for entry in entries]:
            return False
        self._best = self._best.model_copy(update={"checkpoints": entries})
        if self._leader:
            self._place.write(run_directory.BEST, self._best.model_dump_json(by_alias=True, indent=2).encode())
        return True


def _read(spec: BestCheckpoints | None, place: Place) -> Best | None:
    if spec is None:
        return None
    empty = Best(metric=spec.metric, mode=spec.mode)
    content = place.read(run_directory.BEST)
    recorded = empty if content is None else Best.model_validate_json(content)
    # Values of another metric say nothing about this one: the best are chosen anew.
    return recorded if (recorded.metric, recorded.mode) == (spec.metric, spec.mode) else empty
