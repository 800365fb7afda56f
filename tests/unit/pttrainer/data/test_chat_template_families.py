"""What is learned of a conversation, for the templates of all families; their ids are compared in tests/parity."""

from typing import Any

import pytest
from tests.builders.peers.templates import ANSWERED, CALLED, FAMILIES, THOUGHT, TOOLS, TURNS, chat

from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.errors import DataError


def learned_texts(chat_: Chat, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> list[str]:
    """The runs of learned tokens, as text."""
    tokens = chat_.tokens(messages, tools)
    runs: list[list[int]] = []
    before = False
    for token, learned in zip(tokens.ids, tokens.assistant_mask, strict=True):
        if learned and before:
            runs[-1].append(token)
        elif learned:
            runs.append([token])
        before = learned
    return [chat_.tokenizer.decode(run, skip_special=False) for run in runs]


FINE = "Fine.\n\nVery 'fine'!"
CALL = '{"name": "weather", "arguments": {"place": "Zürich", "days": [1, 2.5, null]}}'
LEARNED: dict[tuple[str, str], list[str]] = {
    ("llama-3", "turns"): [f"{FINE}<|eot_id|>", "Yes.<|eot_id|>"],
    ("mistral", "turns"): [f" {FINE}</s>", " Yes.</s>"],
    ("qwen-2.5", "turns"): [f" {FINE} <|im_end|>", "Yes.<|im_end|>"],
    ("qwen-3", "answered"): [f"<think>\n\n</think>\n\n {FINE} <|im_end|>"],
    ("qwen-3", "thought"): ["<think>\nhm\n</think>\n\nFine.<|im_end|>"],
    ("gemma-2", "turns"): [f"{FINE}<end_of_turn>", "Yes.<end_of_turn>"],
    ("gemma-3", "turns"): [f"{FINE}<end_of_turn>", "Yes.<end_of_turn>"],
    ("gpt-oss", "answered"): [f"<|channel|>final<|message|> {FINE} <|return|>"],
    ("marked", "turns"): [f" {FINE} <|im_end|>", "Yes.<|im_end|>"],
}
CONVERSATIONS = {"answered": ANSWERED, "turns": TURNS, "thought": THOUGHT}


@pytest.mark.parametrize(("name", "conversation"), LEARNED)
def test_what_the_assistant_says_is_learned_with_its_end_of_turn(name: str, conversation: str) -> None:
    assert learned_texts(chat(FAMILIES[name]), CONVERSATIONS[conversation]) == LEARNED[name, conversation]


@pytest.mark.parametrize(
    ("name", "learned"),
    [
        ("llama-3", f"{CALL.replace('arguments', 'parameters')}<|eot_id|>"),
        ("mistral", f"[TOOL_CALLS] [{CALL}]</s>"),
        ("qwen-2.5", f"<tool_call>\n{CALL}\n</tool_call><|im_end|>"),
    ],
)
def test_a_call_of_a_tool_is_learned_and_its_result_is_not(name: str, learned: str) -> None:
    assert learned_texts(chat(FAMILIES[name]), CALLED, TOOLS) == [learned]


@pytest.mark.parametrize("name", ["qwen-3", "gpt-oss"])
def test_a_template_that_writes_earlier_turns_anew_is_refused_and_the_way_out_is_named(name: str) -> None:
    with pytest.raises(DataError, match=r"before assistant turn 1 is not a prefix.*{% generation %}"):
        chat(FAMILIES[name]).tokens(TURNS)


def test_a_mark_that_ends_before_the_end_of_turn_is_mended() -> None:
    family = FAMILIES["marked"]
    short = family.template.replace(
        "{{ message.content + '<|im_end|>' }}{% endgeneration %}",
        "{{ message.content }}{% endgeneration %}{{ '<|im_end|>' }}",
    )
    assert short != family.template
    assert learned_texts(Chat(chat(family).tokenizer, short), TURNS) == LEARNED["marked", "turns"]


def test_a_marked_template_may_write_earlier_turns_as_it_likes() -> None:
    template = (
        "{% for m in messages %}{{ m.role + ':' }}{% if m.role == 'assistant' %}{% generation %}"
        "{{ ('' if loop.last else 'earlier ') + m.content + '<|im_end|>' }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    texts = learned_texts(Chat(chat(FAMILIES["marked"]).tokenizer, template), TURNS)
    assert texts == [f"earlier  {FINE} <|im_end|>", "Yes.<|im_end|>"]
