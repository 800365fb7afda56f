"""Rewards in a run of several processes: the leader has them judged, the others wait for what it says.

They wait in a collective, where a process is dead to its watchdog. A reward may take long, or hang up to its own
limit, and that is no hang of the run: so the leader says now and then that it still waits, and all stay alive.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from pttrainer.rewards import Sample
from pttrainer.rewards.runner import Runner, Scores
from pttrainer.rollout.context import Context

PULSE_S = 5.0


def judge(context: Context, runner: Runner, samples: Sequence[Sample]) -> Scores:
    """The same scores on every process; facts for the log are the leader's alone. All processes call it together."""
    nothing = np.zeros((len(runner.names) + 1, len(samples)))
    if context.leader:
        pulse = _Pulse(context, nothing)
        scores = runner.score(samples, pulse.alive)
        _share(np.stack([*(scores.rewards[name] for name in runner.names), scores.total]), is_done=True)
        return scores
    is_done = False
    while not is_done:
        is_done, table = _share(nothing, is_done=False)
        context.alive()
    return Scores(dict(zip(runner.names, table[:-1], strict=True)), table[-1])


class _Pulse:
    """Tells the others that the leader still waits."""

    def __init__(self, context: Context, nothing: np.ndarray) -> None:
        self._context, self._nothing, self._told = context, nothing, time.monotonic()

    def alive(self) -> None:
        self._context.alive()
        if time.monotonic() - self._told >= PULSE_S:
            _share(self._nothing, is_done=False)
            self._told = time.monotonic()


def _share(table: np.ndarray, *, is_done: bool) -> tuple[bool, np.ndarray]:
    """What the leader says, on every process. As bytes: jax would round 64-bit floats to 32 bits."""
    from jax.experimental import multihost_utils

    said = np.concatenate([table.reshape(-1), [float(is_done)]])
    told = np.asarray(multihost_utils.broadcast_one_to_all(said.view(np.uint8))).view(np.float64)
    return bool(told[-1]), told[:-1].reshape(table.shape)
