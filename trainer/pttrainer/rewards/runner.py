"""All rewards of a job, called for all samples of a step.

A builtin that cannot hang runs here; a user's function or regular expression runs in a `Pool`. A reward that
fails, or takes too long, is *no reward* (NaN): the caller leaves that sample out, it is never a 0. Failures
are counted and the first is shown. A reward of the user's that fails on every sample of the first step is
broken, and ends the run; one that only hangs or dies never does.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlparse

import numpy as np

from ptapi.spec import Reward
from pttrainer.errors import ConfigError, UserCodeError
from pttrainer.rewards import MODULES, RewardFunction
from pttrainer.rewards.pool import Pool, Sample, Verdict

MAX_CHILDREN = 8


@dataclass(frozen=True)
class Scores:
    """rewards: by name, [N], NaN where there is none. total: the weighted sum, NaN where any is missing."""

    rewards: Mapping[str, np.ndarray]
    total: np.ndarray


class Runner:
    """The job's rewards, ready to judge. Raises ConfigError or UserCodeError when one cannot be loaded."""

    def __init__(self, rewards: Sequence[Reward]) -> None:
        self._weights = {reward.label: reward.weight for reward in rewards}
        self._functions: dict[str, RewardFunction] = {}
        self._pools: dict[str, Pool] = {}
        self._proven: set[str] = set()
        for index, reward in enumerate(rewards):
            self._add(f"spec.rewards[{index}]", reward)

    def judge(self, samples: Sequence[Sample]) -> Scores:
        """The rewards of all samples."""
        rewards: dict[str, np.ndarray] = {}
        for name in self._weights:
            verdicts = self._verdicts(name, samples)
            rewards[name] = np.array([np.nan if v.reward is None else v.reward for v in verdicts], np.float64)
            self._report(name, verdicts)
        total = sum((self._weights[name] * values for name, values in rewards.items()), np.zeros(len(samples)))
        return Scores(rewards, np.asarray(total))

    @property
    def names(self) -> list[str]:
        """The rewards' names, in the job's order."""
        return list(self._weights)

    def close(self) -> None:
        """Ends the child processes."""
        for pool in self._pools.values():
            pool.close()

    def _add(self, field: str, reward: Reward) -> None:
        name = reward.label
        if name in self._functions or name in self._pools:
            raise ConfigError(f"{field}.name: {name!r}: two rewards have this name; hint: set {field}.name")
        children = min(os.cpu_count() or 1, MAX_CHILDREN)
        if reward.python is not None:
            source = {"path": _path(field, reward.python.uri), "function": reward.python.function}
            self._pools[name] = Pool(name, source, reward.timeout_seconds, children)
        elif reward.pattern is not None:
            _check_pattern(field, reward.pattern)
            self._pools[name] = Pool(name, {"pattern": reward.pattern}, reward.timeout_seconds, children)
        elif reward.builtin in MODULES:
            self._functions[name] = importlib.import_module(MODULES[reward.builtin]).reward
        else:
            accepted = ", ".join(sorted(MODULES))
            raise ConfigError(
                f"{field}.builtin: {reward.builtin!r}: not supported yet; accepted: {accepted}, or python"
            )

    def _verdicts(self, name: str, samples: Sequence[Sample]) -> list[Verdict]:
        if name in self._pools:
            return self._pools[name].judge(samples)
        function = self._functions[name]
        return [Verdict(function(*sample)) for sample in samples]

    def _report(self, name: str, verdicts: Sequence[Verdict]) -> None:
        failed = [verdict for verdict in verdicts if verdict.reward is None]
        if not failed:
            self._proven.add(name)
            return
        counted = f"{len(failed)} of {len(verdicts)} samples have no reward; the first: {failed[0].error}"
        if len(failed) < len(verdicts):
            self._proven.add(name)
        elif name not in self._proven and not any(verdict.stopped for verdict in failed):
            raise UserCodeError(
                f"spec.rewards[{name}]: {counted}; hint: the function must return a float for every sample"
            )
        print(f"reward {name}: {counted}", file=sys.stderr)


def mean(values: np.ndarray) -> float:
    """Mean of the values that are there; 0 where there are none."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if there.size else 0.0


def _path(field: str, uri: str) -> str:
    parsed = urlparse(uri)
    if parsed.scheme != "file":
        raise ConfigError(f"{field}.python.uri: {uri}: not supported yet; accepted: file:///…/reward.py")
    return parsed.path


def _check_pattern(field: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{field}.pattern: {pattern!r}: is not a regular expression: {error}") from error
