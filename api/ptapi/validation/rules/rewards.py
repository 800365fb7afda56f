"""Rules for rewards: one source each, fields that only one of them reads, and different names."""

import re

from ptapi.spec import Reward
from ptapi.validation.condition import Condition, compare, equals, has, is_true, unset
from ptapi.validation.rule import SPEC, Rule, Scope

# A reward's label: when it is this, and what it is.
_LABELS = (
    ("has({0}.name)", "{0}.name"),
    ("!has({0}.name) && has({0}.builtin)", "{0}.builtin"),
    ("!has({0}.name) && has({0}.python)", "{0}.python.function"),
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


_REWARD = Scope("spec.rewards[]")

RULES: tuple[Rule, ...] = (
    _REWARD.exactly_one("builtin", "python", "judge"),
    _REWARD.rule("batched", "false, because only a python reward can be batched", ~is_true("batched") | has("python")),
    *(
        _REWARD.unset_unless(
            field, has("builtin") & equals("builtin", "length"), "because only the builtin length counts tokens"
        )
        for field in ("maxTokens", "bufferTokens")
    ),
    _REWARD.rule("name", "a name, because a judge has none of its own", has("name") | unset("judge")),
    Scope("spec.rewards[].judge").rule("highest", "above lowest", compare("highest", ">", "lowest")),
    _REWARD.unset_unless(
        "pattern", has("builtin") & equals("builtin", "format"), "because only the builtin format has a pattern"
    ),
    _REWARD.rule("pattern", "a regular expression of Python", Condition("", _is_pattern)),
    SPEC.rule(
        "rewards",
        "rewards with different names (unset, a name is the builtin's or the function's)",
        Condition(
            f"!has(self.rewards) || self.rewards.all(a, (!has(a.name) && (has(a.python) || has(a.judge))) || "
            f"self.rewards.exists_one(b, {_SAME_LABEL}))",
            lambda spec: len({reward.label for reward in spec.rewards}) == len(spec.rewards),
        ),
    ),
)
