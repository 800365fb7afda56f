"""Rewards in a run of several processes: the leader scores, the others wait for its result.

They wait in a collective, where a process looks dead to its watchdog. A reward may take long, or hang up to its own
limit, and that is no hang of the run: so the leader signals now and then that it still waits, and all stay alive.
"""

import time
from collections.abc import Mapping, Sequence

import numpy as np

from pttrainer.rewards import Sample, Verdict
from pttrainer.rewards.runner import Runner, Scores
from pttrainer.rollout.context import Context

PULSE_S = 5.0


def score(
    context: Context, runner: Runner, samples: Sequence[Sample], of_models: Mapping[str, Sequence[Verdict]]
) -> Scores:
    """Return the same scores on every process; only the leader's have facts. All processes call it together."""
    nothing = np.zeros((len(runner.names) + 1, len(samples)))
    if context.leader:
        pulse = _Pulse(context, nothing)
        scores = runner.score(samples, pulse.alive, of_models)
        _share(np.stack([*(scores.rewards[name] for name in runner.names), scores.total]), is_done=True)
        return scores
    is_done = False
    while not is_done:
        is_done, table = _share(nothing, is_done=False)
        context.alive()
    return Scores(dict(zip(runner.names, table[:-1], strict=True)), table[-1])


class _Pulse:
    """Signals to the other processes that the leader still waits."""

    def __init__(self, context: Context, nothing: np.ndarray) -> None:
        self._context, self._nothing, self._last_sent = context, nothing, time.monotonic()

    def alive(self) -> None:
        self._context.alive()
        if time.monotonic() - self._last_sent >= PULSE_S:
            _share(self._nothing, is_done=False)
            self._last_sent = time.monotonic()


def _share(table: np.ndarray, *, is_done: bool) -> tuple[bool, np.ndarray]:
    """Broadcast the leader's table, as bytes: jax would round 64-bit floats to 32 bits."""
    from jax.experimental import multihost_utils

    sent = np.concatenate([table.reshape(-1), [float(is_done)]])
    received = np.asarray(multihost_utils.broadcast_one_to_all(sent.view(np.uint8))).view(np.float64)
    return bool(received[-1]), received[:-1].reshape(table.shape)
