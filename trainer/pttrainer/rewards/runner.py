"""All rewards of a job, called for all samples of a step.

A reward that fails, or takes too long, is *no reward* (NaN): the caller leaves that sample out, it is never a 0.
Failures are counted and the first is shown. A reward of the user's that fails on every sample of the first step is
broken, and ends the run; one that only hangs or dies never does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ptapi import run_directory
from ptapi.spec import Reward
from pttrainer.errors import ConfigError, UserCodeError
from pttrainer.rewards import Sample, Verdict, factory
from pttrainer.rewards.scorers import Judge
from pttrainer.runtime.io.storage import Place
from pttrainer.sandbox.pool import Alive

CALLED = "the function must return a float for every sample"
ASKED = "look at the judge's url and model, and at the key in the variable that apiKeyEnv names"
"""What a reward that fails from the start on needs."""


@dataclass(frozen=True)
class Scores:
    """rewards: by name, [N], NaN where there is none. total: the weighted sum, NaN where any is missing. facts: for
    the log. failures: by name, the first verdict without a reward."""

    rewards: Mapping[str, np.ndarray]
    total: np.ndarray
    facts: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, Verdict] = field(default_factory=dict)


class Runner:
    """The job's rewards, ready to judge. Raises ConfigError or UserCodeError when one cannot be loaded.

    max_new_tokens: of a completion. run: the run directory, where answers of endpoints are kept.
    """

    def __init__(self, rewards: Sequence[Reward], max_new_tokens: int = 512, run: Place | None = None) -> None:
        self._weights = {reward.label: reward.weight for reward in rewards}
        self._judges: dict[str, Judge] = {}
        self._proven: set[str] = set()
        self._hints = {reward.label: ASKED if reward.judge is not None else CALLED for reward in rewards}
        try:
            for index, reward in enumerate(rewards):
                where = f"spec.rewards[{index}]"
                if reward.label in self._judges:
                    raise ConfigError(
                        f"{where}.name: {reward.label!r}: two rewards have this name; hint: set {where}.name"
                    )
                self._judges[reward.label] = factory.judge_of(where, reward, max_new_tokens, run)
        except BaseException:
            self.close()
            raise

    def judge(self, samples: Sequence[Sample], alive: Alive = lambda: None) -> Scores:
        """The rewards of all samples. alive: called again and again while they are waited for.

        Judges behind endpoints are asked first and waited for last: they take their time while others compute.
        """
        rewards: dict[str, np.ndarray] = {}
        facts: dict[str, float] = {}
        failures: dict[str, Verdict] = {}
        are_ahead = {name: judge.ahead(samples) for name, judge in self._judges.items()}
        for name in sorted(self._judges, key=are_ahead.__getitem__):
            judge, began = self._judges[name], time.monotonic()
            verdicts = judge.judge(samples, alive)
            facts[f"{run_directory.SECONDS}reward/{name}"] = time.monotonic() - began
            facts |= {f"reward/{name}/{fact}": value for fact, value in judge.facts().items()}
            rewards[name] = np.array([np.nan if v.reward is None else v.reward for v in verdicts], np.float64)
            self._report(name, verdicts)
            failures |= dict([(name, verdict) for verdict in verdicts if verdict.reward is None][:1])
        rewards = {name: rewards[name] for name in self._judges}
        total = sum((self._weights[name] * values for name, values in rewards.items()), np.zeros(len(samples)))
        return Scores(rewards, np.asarray(total), facts, failures)

    @property
    def names(self) -> list[str]:
        """The rewards' names, in the job's order."""
        return list(self._weights)

    def close(self) -> None:
        """Ends the child processes."""
        for judge in self._judges.values():
            judge.close()

    def _report(self, name: str, verdicts: Sequence[Verdict]) -> None:
        failed = [verdict for verdict in verdicts if verdict.reward is None]
        if not failed:
            self._proven.add(name)
            return
        counted = f"{len(failed)} of {len(verdicts)} samples have no reward; the first: {failed[0].error}"
        if len(failed) < len(verdicts):
            self._proven.add(name)
        elif name not in self._proven and not any(verdict.stopped for verdict in failed):
            raise UserCodeError(f"spec.rewards[{name}]: {counted}; hint: {self._hints[name]}")
        print(f"reward {name}: {counted}", file=sys.stderr)
