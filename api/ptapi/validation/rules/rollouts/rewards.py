"""Rules for rewards: one source each, fields that only one of them reads, and different names."""

import ast
import re
import sys
from functools import partial

from ptapi.spec import PostTrainJobSpec, PythonCode, Reward
from ptapi.validation.predicate import Predicate, compare, equals, has, is_true, matches, unset
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.algorithm import HAS_REWARDING_ENVIRONMENT, USES_NO_REWARDS

# A reward's label: when it is this, and what it is.
_LABELS = (
    ("has({0}.name)", "{0}.name"),
    ("!has({0}.name) && has({0}.builtin)", "{0}.builtin"),
    ("!has({0}.name) && has({0}.python)", "{0}.python.__function__"),
)
# Case by case, and without two functions of the same name: the API server's cost estimate takes the result of
# `? :`, and of a comparison of two fields of fields, for a text without bound. Python sees that case too.
_SAME_LABEL = " || ".join(
    f"({when_a.format('a')} && {when_b.format('b')} && {label_a.format('a')} == {label_b.format('b')})"
    for when_a, label_a in _LABELS
    for when_b, label_b in _LABELS
    if "python" not in label_a or "python" not in label_b
)


def _is_pattern(reward: Reward) -> bool:
    try:
        re.compile(reward.pattern or "")
    except re.error:
        return False
    return True


def _parses(code: PythonCode) -> bool:
    try:
        compile(code.code or "", "code", "exec", flags=ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def code_rules(scope: str) -> tuple[Rule, ...]:
    """Return the rules for Python of a user: one source, and text that is Python."""
    python = Scope(scope)
    version = ".".join(map(str, sys.version_info[:2]))
    return (
        python.exactly_one("uri", "code"),
        python.rule("code", f"text that Python {version} can parse", Predicate("", _parses)),
    )


def _falls_before_it_begins(spec: PostTrainJobSpec, reward: Reward) -> bool:
    return reward.max_tokens is None and (reward.buffer_tokens or 0) > spec.rollout.max_new_tokens


_REWARD = Scope("spec.rewards[]")
_JUDGE = Scope("spec.rewards[].judge")
_FALLS_WITHIN = unset("maxTokens") | compare("bufferTokens", "<=", "maxTokens")

RULES: tuple[Rule, ...] = (
    _REWARD.exactly_one("builtin", "python", "judge", "model"),
    *code_rules("spec.rewards[].python"),
    _REWARD.rule("batched", "false, because only a python reward can be batched", ~is_true("batched") | has("python")),
    *(
        _REWARD.unset_unless(
            field, has("builtin") & equals("builtin", "length"), "because only the builtin length counts tokens"
        )
        for field in ("maxTokens", "bufferTokens")
    ),
    _REWARD.rule("bufferTokens", "at most maxTokens", unset("bufferTokens") | _FALLS_WITHIN),
    SPEC.rule(
        "rewards",
        "for length, bufferTokens of at most rollout.maxNewTokens, which maxTokens is unless it is set",
        Predicate("", lambda spec: not any(map(partial(_falls_before_it_begins, spec), spec.rewards))),
    ),
    SPEC.rule(
        "rewards",
        "a weight other than 0 in one of them, because grpo, ppo, raft and sdpo learn from their sum",
        Predicate("", lambda spec: not spec.rewards or any(reward.weight for reward in spec.rewards))
        | USES_NO_REWARDS
        | HAS_REWARDING_ENVIRONMENT,
    ),
    _REWARD.rule(
        "name",
        "a name, because a judge or a model has none of its own",
        has("name") | (unset("judge") & unset("model")) | has("builtin") | has("python"),
    ),
    _JUDGE.rule("highest", "above lowest", compare("highest", ">", "lowest")),
    _JUDGE.rule(
        "prompt",
        "text with {completion}, which stands for what is judged",
        Predicate("", lambda judge: judge.prompt is None or "{completion}" in judge.prompt),
    ),
    _JUDGE.rule(
        "url", "the endpoint's base: /chat/completions is added", unset("url") | ~matches("url", "/chat/completions/?$")
    ),
    _REWARD.unset_unless(
        "pattern", has("builtin") & equals("builtin", "format"), "because only the builtin format has a pattern"
    ),
    _REWARD.rule("pattern", "a regular expression of Python", Predicate("", _is_pattern)),
    SPEC.rule(
        "rewards",
        "rewards with different names (unset, a name is the builtin's or the function's)",
        Predicate(
            "!has(self.rewards) || self.rewards.all(a, "
            "(!has(a.name) && (has(a.python) || has(a.judge) || has(a.model))) || "
            f"self.rewards.exists_one(b, {_SAME_LABEL}))",
            lambda spec: len({reward.label for reward in spec.rewards}) == len(spec.rewards),
        ),
    ),
)
