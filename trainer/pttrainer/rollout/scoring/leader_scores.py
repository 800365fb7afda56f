"""Rewards in a run of several processes: the leader scores, the others wait for its result.

Where they wait, a process looks dead to its watchdog. A reward may take long, or hang up to its own limit, and that is
no hang of the run: so the leader signals now and then that it still waits, and all stay alive.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from pttrainer.rewards import Sample, Verdict
from pttrainer.rewards.runner import Runner, Scores
from pttrainer.rollout.context import Context


def score(
    context: Context, runner: Runner, samples: Sequence[Sample], of_models: Mapping[str, Sequence[Verdict]]
) -> Scores:
    """Return the same scores on every process; only the leader's have facts. All processes call it together."""
    messages = context.messages
    if messages is None:
        return runner.score(samples, context.alive, of_models)
    if context.leader:
        scores = runner.score(samples, messages.beating(context.alive), of_models)
        messages.send([np.stack([*(scores.rewards[name] for name in runner.names), scores.total]).tobytes()])
        return scores
    table = np.frombuffer(messages.receive(context.alive), np.float64).reshape(len(runner.names) + 1, len(samples))
    return Scores(dict(zip(runner.names, table[:-1], strict=True)), table[-1])
