"""Build the scorer of each entry in `spec.rewards`: one function per kind of reward.

To add a builtin: its module, and a line in the table of those that run in process, or of those that run sandboxed
because they may hang or must be confined.
"""

import importlib
import re
from collections.abc import Callable

from ptapi.spec import JudgeReward, PythonReward, Reward
from pttrainer.errors import ConfigError
from pttrainer.rewards.builtin import length
from pttrainer.rewards.llm_judge.endpoint import LlmJudge
from pttrainer.rewards.llm_judge.judge_model import JudgeModel
from pttrainer.rewards.llm_judge.reply_cache import ReplyCache
from pttrainer.rewards.scorers import GRACE_S, InProcessScorer, SandboxedScorer, Scorer
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io.local_copy import local_copy
from pttrainer.runtime.io.place import Place

IN_PROCESS: dict[str, str] = {
    "gsm8k": "pttrainer.rewards.builtin.gsm8k",
    "format": "pttrainer.rewards.builtin.format",
    "choice": "pttrainer.rewards.builtin.choice",
    "exact": "pttrainer.rewards.builtin.exact",
    "tool-use": "pttrainer.rewards.builtin.tool_use",
}
"""Builtins that take linear time, by the name in `spec.rewards[].builtin`."""

SANDBOXED: dict[str, str] = {"math": "pttrainer.rewards.builtin.math"}
"""Builtins that may hang."""


def build_scorer(field: str, reward: Reward, max_new_tokens: int, run: Place | None) -> Scorer:
    """Return the scorer of a reward; raise ConfigError or UserCodeError if it cannot be loaded."""
    if reward.python is not None:
        return _python(field, reward, reward.python)
    if reward.judge is not None:
        return _endpoint(field, reward, reward.judge, run)
    assert reward.builtin is not None
    if reward.builtin in SPECIAL:
        return SPECIAL[reward.builtin](field, reward, max_new_tokens)
    named = _named(reward)
    if reward.pattern is not None:
        _check_pattern(field, reward.pattern)
        return SandboxedScorer(named, {"kind": "pattern", "pattern": reward.pattern}, reward.timeout_seconds)
    if reward.builtin in SANDBOXED:
        source = {"kind": "builtin", "module": SANDBOXED[reward.builtin]}
        return SandboxedScorer(named, source, reward.timeout_seconds)
    function = importlib.import_module(IN_PROCESS[reward.builtin]).reward
    return InProcessScorer(lambda sample: function(*sample[:3]))


def _named(reward: Reward) -> str:
    return f"spec.rewards[{reward.label}]"


def _python(field: str, reward: Reward, python: PythonReward) -> Scorer:
    source = {
        "kind": "function",
        "path": local_copy(f"{field}.python", python),
        "function": python.function,
        "batched": reward.batched,
        "timeout": reward.timeout_seconds,
    }
    return SandboxedScorer(_named(reward), source, reward.timeout_seconds)


def _endpoint(field: str, reward: Reward, judge: JudgeReward, run: Place | None) -> Scorer:
    key = None
    if judge.api_key_env is not None:
        key = processes.secret(judge.api_key_env, f"{field}.judge.apiKeyEnv")
    return LlmJudge(
        judge, JudgeModel(judge, f"{field}.judge"), reward.timeout_seconds, key, ReplyCache(reward.label, run)
    )


def _code(field: str, reward: Reward, max_new_tokens: int) -> Scorer:
    # A program that times out is wrong; only a child that is stuck itself yields no reward.
    source = {"kind": "code", "timeout": reward.timeout_seconds}
    return SandboxedScorer(_named(reward), source, reward.timeout_seconds + GRACE_S, processes.sandboxes())


def _length(field: str, reward: Reward, max_new_tokens: int) -> Scorer:
    most = reward.max_tokens or max_new_tokens
    buffer = reward.buffer_tokens or max(1, most // 5)
    if buffer > most:
        raise ConfigError(f"{field}.bufferTokens: {buffer}: accepted: at most the longest completion, {most} tokens")

    return InProcessScorer(lambda sample: length.reward(sample.tokens, most, buffer))


SPECIAL: dict[str, Callable[[str, Reward, int], Scorer]] = {"code": _code, "length": _length}
"""Builtins that need more than the sample's texts."""


def _check_pattern(field: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{field}.pattern: {pattern!r}: is not a regular expression: {error}") from error
