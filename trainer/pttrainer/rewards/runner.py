"""All rewards of a job, called for all samples of a step.

A reward that fails or times out is *no reward* (NaN): the caller leaves that sample out, it never counts as 0. Failures
are counted and the first is shown. A user's reward that fails on every sample of the first step is broken, and ends the
run; one that only hangs or dies never does.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from ptapi import run_directory
from ptapi.spec import Reward
from pttrainer.errors import ConfigError, UserCodeError
from pttrainer.rewards import Sample, Verdict, factory
from pttrainer.rewards.scorers import Scorer
from pttrainer.runtime.io.place import Place
from pttrainer.sandbox.pool import Alive

FUNCTION_HINT = "the function must return a float for every sample"
JUDGE_HINT = "check the judge's url and model, and the key in the variable that apiKeyEnv names"
SERVICE_HINT = (
    "look at the log of the judge's service: its model must have a chat template, and room for prompt and reply"
)
MODEL_HINT = "the reward model's chat template must take the messages of the rows"
"""Hints for a reward that fails from the start."""


@dataclass(frozen=True)
class Scores:
    """The rewards of a step.

    rewards: by name, [N], NaN where there is none. total: the weighted sum, NaN where any is missing. facts:
    metrics for the log. failures: by name, the first verdict without a reward.
    """

    rewards: Mapping[str, np.ndarray]
    total: np.ndarray
    facts: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, Verdict] = field(default_factory=dict)


class Runner:
    """The job's rewards, ready to score. Raises ConfigError or UserCodeError if one cannot be loaded.

    A reward model scores on the devices, outside of it; its verdicts are passed to `score`.

    max_new_tokens: of a completion. run: the run directory, where judges' replies are kept.
    """

    def __init__(self, rewards: Sequence[Reward], max_new_tokens: int = 512, run: Place | None = None) -> None:
        self._weights = {reward.label: reward.weight for reward in rewards}
        self._scorers: dict[str, Scorer] = {}
        self._proven: set[str] = set()
        self._hints = {reward.label: _hint(reward) for reward in rewards}
        try:
            for index, reward in enumerate(rewards):
                where = f"spec.rewards[{index}]"
                if any(reward.label == other.label for other in rewards[:index]):
                    raise ConfigError(
                        f"{where}.name: {reward.label!r}: two rewards have this name; hint: set {where}.name"
                    )
                if reward.model is None:
                    self._scorers[reward.label] = factory.build_scorer(where, reward, max_new_tokens, run)
        except BaseException:
            self.close()
            raise

    def score(
        self,
        samples: Sequence[Sample],
        alive: Alive = lambda: None,
        of_models: Mapping[str, Sequence[Verdict]] = MappingProxyType({}),
    ) -> Scores:
        """Return the rewards of all samples. alive: called repeatedly while waiting. of_models: by reward models.

        Judges behind endpoints start first and are waited for last, so that other rewards are computed
        meanwhile.
        """
        by_name = dict(of_models)
        facts: dict[str, float] = {}
        is_remote = {name: scorer.start(samples) for name, scorer in self._scorers.items()}
        for name in sorted(self._scorers, key=is_remote.__getitem__):
            scorer, began = self._scorers[name], time.monotonic()
            by_name[name] = scorer.score(samples, alive)
            facts[f"{run_directory.SECONDS}reward/{name}"] = time.monotonic() - began
            facts |= {f"reward/{name}/{fact}": value for fact, value in scorer.facts().items()}
        failures: dict[str, Verdict] = {}
        for name, verdicts in by_name.items():
            self._report(name, verdicts)
            failures |= dict([(name, verdict) for verdict in verdicts if verdict.reward is None][:1])
        rewards = {name: _array(by_name[name]) for name in self._weights}
        total = sum((self._weights[name] * values for name, values in rewards.items()), np.zeros(len(samples)))
        return Scores(rewards, np.asarray(total), facts, failures)

    @property
    def names(self) -> list[str]:
        """Return the rewards' names, in the job's order."""
        return list(self._weights)

    def close(self) -> None:
        """End the child processes."""
        for scorer in self._scorers.values():
            scorer.close()

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


def _hint(reward: Reward) -> str:
    if reward.model is not None:
        return MODEL_HINT
    if reward.judge is None:
        return FUNCTION_HINT
    return JUDGE_HINT if reward.judge.service is None else SERVICE_HINT


def _array(verdicts: Sequence[Verdict]) -> np.ndarray:
    return np.array([np.nan if v.reward is None else v.reward for v in verdicts], np.float64)
