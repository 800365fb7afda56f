"""TRL's reward functions as rewards of the spec."""

import re
from typing import Any

from ptctl.errors import InputError
from ptctl.importers.draft import Draft
from ptctl.importers.huggingface.words import Words

_THINK = "^<think>(?!.*<think>).*</think>"
_BUILTIN: dict[str, dict[str, Any]] = {
    "accuracy_reward": {"builtin": "math"},
    "reasoning_accuracy_reward": {"builtin": "math"},
    "think_format_reward": {"builtin": "format", "pattern": _THINK},
    "get_soft_overlong_punishment": {"builtin": "length", "maxTokens": 1280, "bufferTokens": 256},
}
_NOT_THE_SAME = {
    "reasoning_accuracy_reward": "math, which looks at the whole completion and not behind </think> alone",
}


def put_rewards(draft: Draft, words: Words) -> None:
    """Write the rewards, or leave them to fill in where one is code that only the source has."""
    functions, weights = words.several("reward_funcs"), words.numbers("reward_weights")
    if weights and len(weights) != len(functions):
        raise InputError(f"{words.shown('reward_weights')}: accepted: one for each of reward_funcs")
    rewards: list[dict[str, Any]] = []
    for at, function in enumerate(functions):
        weight = {"weight": weights[at]} if weights and weights[at] != 1.0 else {}
        rewards.append({**_BUILTIN.get(function, {"python": {"function": function.rpartition(".")[2]}}), **weight})
        if function in _NOT_THE_SAME:
            draft.change(f"{words.names.get('reward_funcs', 'reward_funcs')}: {function}", _NOT_THE_SAME[function])
    if words.is_given("reward_model_name_or_path"):
        model = words.text("reward_model_name_or_path")
        uri = model if "://" in model or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", model) else f"hf://{model}"
        rewards.insert(0, {"name": "reward-model", "model": {"uri": uri}})
    own = [function for function in functions if function not in _BUILTIN]
    if rewards and not own:
        return draft.put("spec.rewards", rewards, "reward_funcs")
    named = f" ({', '.join(own)})" if own else ""
    hint = f"[{{builtin: math}}, …] or functions of yours{named} as {{python: {{uri: gs://…/NAME.py, function: NAME}}}}"
    draft.blank("spec.rewards", [{"builtin": "math"}], hint)
    for at, function in enumerate(functions):
        if weights:
            draft.note(f"reward_weights: {weights[at]} for {function}", "`weight` beside the reward")
        elif function in _BUILTIN:
            draft.note(f"reward_funcs: {function}", f"builtin: {_BUILTIN[function]['builtin']}, beside your own")
    return None
