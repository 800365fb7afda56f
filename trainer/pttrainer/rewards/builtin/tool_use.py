"""How well an episode used its tools: the mean of three parts, each between 0 and 1.

- the right calls: the share of `row["calls"]` (a list of required {name, arguments}) that were made;
  if the row names none, whether any call was answered;
- valid calls: the share of calls whose answer was not an error; 0 without calls;
- the right final answer, compared like `gsm8k`.

Reads the episode's turns (`row["transcript"]`), so it needs an environment; without one it is an error (no reward).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pttrainer.environments.tool_call_parsing import PARSERS, Call, parse_calls
from pttrainer.rewards import Row
from pttrainer.rewards.builtin import gsm8k
from pttrainer.sandbox.user_code import RewardCodeError


def reward(prompt: str, completion: str, row: Row) -> float:
    """Return a reward between 0 and 1."""
    turns = row.get("transcript")
    if not isinstance(turns, Sequence):
        raise RewardCodeError("there are no turns; hint: tool-use is for jobs with spec.environment.tools")
    calls = [call for turn in turns if turn["role"] == "assistant" for call in _calls(str(turn["content"]))]
    answered = [str(turn["content"]) for turn in turns if turn["role"] == "tool"]
    good = sum(not text.startswith("error: ") for text in answered)
    expected = row.get("calls") or []
    right = sum(_is_made(call, calls) for call in expected) / len(expected) if expected else float(good > 0)
    valid = good / len(calls) if calls else 0.0
    return (right + valid + gsm8k.reward(prompt, completion, row)) / 3.0


def _calls(text: str) -> list[Call]:
    return next((calls for form in PARSERS if (calls := parse_calls(form, text))), [])


def _is_made(expected: Mapping[str, Any], calls: Sequence[Call]) -> bool:
    return any(call.name == expected["name"] and call.arguments == expected.get("arguments", {}) for call in calls)
