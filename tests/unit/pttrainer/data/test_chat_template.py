"""Chat templates and masks, token by token."""

import dataclasses

import pytest

from pttrainer.data.tokenization import jinja_sandbox
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.tokenizer import Tokenizer, byte_tokenizer
from pttrainer.errors import ConfigError, DataError

TOKENIZER = byte_tokenizer()
CHATML = (
    "{% for m in messages %}{{ '<|user|>' + m.role + '\\n' + m.content + '<|end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|user|>assistant\\n' }}{% endif %}"
)
TURNS = [
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "sure?"},
    {"role": "assistant", "content": "yes"},
]


def learned_text(chat: Chat, messages: list[dict[str, str]]) -> str:
    tokens = chat.tokens(messages)
    learned = [i for i, learn in zip(tokens.ids, tokens.assistant_mask, strict=True) if learn]
    return chat.tokenizer.decode(learned, skip_special=False)


def test_the_built_in_template_writes_each_turn_between_its_markers() -> None:
    chat = Chat(TOKENIZER, TOKENIZER.template)
    assert TOKENIZER.decode(chat.tokens(TURNS[:2]).ids, skip_special=False) == (
        "<|bos|><|user|>1+1?<|end|><|assistant|>2<|end|>"
    )


@pytest.mark.parametrize("template", [TOKENIZER.template, CHATML])
def test_the_assistant_is_learned_with_its_end_token_in_every_turn(template: str) -> None:
    assert learned_text(Chat(TOKENIZER, template), TURNS) == "2<|end|>yes<|end|>"


@pytest.mark.parametrize("template", [TOKENIZER.template, CHATML, None])
def test_a_prompt_is_the_beginning_of_the_whole_conversation(template: str | None) -> None:
    chat = Chat(TOKENIZER, template)
    prompt, tokens = chat.prompt_ids(TURNS[:1]), chat.tokens(TURNS[:2])
    assert tokens.ids[: len(prompt)] == prompt
    assert not any(tokens.assistant_mask[: len(prompt)])
    assert tokens.assistant_mask[len(prompt)]


def test_there_is_exactly_one_beginning_token() -> None:
    for template in (TOKENIZER.template, None):
        assert Chat(TOKENIZER, template).tokens(TURNS[:2]).ids.count(256) == 1


def test_text_in_many_bytes_is_learned_whole() -> None:
    messages = [{"role": "user", "content": "日本?"}, {"role": "assistant", "content": "はい é 🙂"}]
    assert learned_text(Chat(TOKENIZER, TOKENIZER.template), messages) == "はい é 🙂<|end|>"


def test_a_base_model_gets_plain_text_and_an_end_token() -> None:
    chat = Chat(TOKENIZER, None)
    assert TOKENIZER.decode(chat.tokens(TURNS[:2]).ids, skip_special=False) == "<|bos|>1+1?2<|end|>"
    assert learned_text(chat, TURNS[:2]) == "2<|end|>"


def test_plain_text_is_learned_but_for_its_beginning_token() -> None:
    tokens = Chat(TOKENIZER, None).text_tokens("ab")
    assert tokens.ids == [256, 97, 98, 257]
    assert tokens.assistant_mask == [False, True, True, True]


def test_a_conversation_without_an_assistant_teaches_nothing() -> None:
    assert not any(Chat(TOKENIZER, TOKENIZER.template).tokens(TURNS[:1]).assistant_mask)


def test_generation_markers_of_newer_templates_are_understood() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{% generation %}{{ m.content }}<|end|>"
        "{% endgeneration %}{% else %}<|user|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    assert learned_text(Chat(TOKENIZER, template), TURNS) == "2<|end|>yes<|end|>"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for %}", "is not valid Jinja"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[9].content }}", "no element 9"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "not|unsafe"),
        ("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}", "not a prefix of the whole"),
    ],
)
def test_templates_that_cannot_be_trusted_are_refused(template: str, message: str) -> None:
    with pytest.raises(DataError, match=f"chat template: .*({message})"):
        Chat(TOKENIZER, template).tokens(TURNS[:2])


THROUGH = "{% for a in range(99999) %}"
ENDLESS = {
    "loops": THROUGH * 3 + "{% set x = a %}" + "{% endfor %}" * 3,
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "a recursive loop": "{% for a in [messages] recursive %}{% if loop.depth < 60 %}{{ loop([a]) }}{{ loop([a]) }}"
    "{% endif %}{% endfor %}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_does_not_end_is_ended(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jinja_sandbox, "LIMIT_S", 0.2)
    message = r"spec\.model\.chatTemplate: needs more than 0\.2 s for 2 messages; accepted: a template that ends"
    with pytest.raises(ConfigError, match=message):
        Chat(TOKENIZER, ENDLESS[name]).tokens(TURNS[:2])


@pytest.mark.parametrize("number", ["9 ** 999999999", "'a' * 10 ** 12", "[0] * 1000000000000"])
def test_a_template_cannot_compute_what_does_not_fit_into_memory(number: str) -> None:
    with pytest.raises(DataError, match=r"chat template: .*larger than"):
        Chat(TOKENIZER, f"{{{{ {number} }}}}").tokens(TURNS[:2])


def test_a_template_may_multiply() -> None:
    assert Chat(TOKENIZER, "{{ '-' * 3 }}{{ 2 * 3 ** 2 }}").render(TURNS, generate=False) == "---18"


def test_several_turns_need_a_template() -> None:
    with pytest.raises(DataError, match=r"no chat template.*spec\.model\.chatTemplate"):
        Chat(TOKENIZER, None).tokens(TURNS)


def test_all_end_tokens_of_a_model_end_a_turn() -> None:
    tokenizer: Tokenizer = dataclasses.replace(TOKENIZER, eos_ids=(258, 257))
    assert learned_text(Chat(tokenizer, CHATML), TURNS[:2]) == "2<|end|>"
