"""Tokens of conversations against `transformers`: the same ids, the same refusals, the same masks where it has them."""

from typing import Any

import pytest
from tests.builders.peers.templates import CONVERSATIONS, FAMILIES, TOOLS, chat
from transformers import PreTrainedTokenizerFast

from pttrainer.errors import DataError


def theirs(name: str) -> Any:
    """The same engine in their wrapping."""
    family = FAMILIES[name]
    engine = chat(family).tokenizer.engine
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=engine, bos_token=family.bos, eos_token=family.ends[0])
    tokenizer.chat_template = family.template
    return tokenizer


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["without tools", "with tools"])
@pytest.mark.parametrize("generate", [False, True], ids=["whole", "prompt"])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_ids_are_equal(name: str, conversation: str, generate: bool, tools: list[Any] | None) -> None:
    ours, messages = chat(FAMILIES[name]), CONVERSATIONS[conversation]
    try:
        expected = theirs(name).apply_chat_template(
            messages, tools=tools, add_generation_prompt=generate, tokenize=True, return_dict=False
        )
    except Exception:
        with pytest.raises(DataError, match="chat template"):
            ours.render(messages, tools, generate=generate)
        return
    if generate:
        assert ours.prompt_ids(messages, tools) == expected
    else:
        assert ours.tokenizer.encode(ours.render(messages, tools, generate=False)) == expected


@pytest.mark.parametrize("conversation", ["answered", "turns", "system", "thought"])
def test_masks_of_generation_markers_are_equal(conversation: str) -> None:
    messages = CONVERSATIONS[conversation]
    expected = theirs("marked").apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    tokens = chat(FAMILIES["marked"]).tokens(messages)
    assert tokens.ids == expected["input_ids"]
    assert [int(is_trained) for is_trained in tokens.assistant_mask] == expected["assistant_masks"]
