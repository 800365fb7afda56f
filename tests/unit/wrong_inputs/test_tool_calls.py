"""Tool calls that a model gets wrong: calls with an error, which the model reads and which count as failed."""

from tests.unit.wrong_inputs import tables

from pttrainer.environments.tool_call_parsing import parse_calls


def test_golden_wrong_tool_call_is_a_call_with_an_error() -> None:
    tables.check("tool_calls", _answer)


def _answer(turn: list[str]) -> str:
    calls = parse_calls(*turn)
    return "\n".join(call.error or tables.ACCEPTED for call in calls) or tables.ACCEPTED
