"""Conversations to tokens, by the model's own chat template.

Templates are code from a checkpoint, so they run in Jinja's immutable sandbox. A conversation is rendered
once and tokenised once. Which tokens the assistant said is what the template marks (`{% generation %}`); where it
marks nothing, it is found by rendering the conversation up to each assistant turn (with the generation prompt) and up
to its end, and comparing prefixes. Where the shorter text is not a prefix of the longer one, a mask would be a guess,
so the template is refused.

A base model without a template gets plain text: beginning token, prompt, completion, end token.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.errors import DataError

Message = Mapping[str, Any]
Tools = Sequence[Any] | None
"""Functions that the assistant may call, as JSON schemas."""


@dataclass(frozen=True)
class Tokens:
    """Token ids, and which of them the model is to learn to say."""

    ids: list[int]
    said: list[bool]


@dataclass(frozen=True)
class Chat:
    """A tokenizer and its template."""

    tokenizer: Tokenizer
    source: str | None
    """Jinja text; None for a base model."""

    def prompt_ids(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Tokens of a conversation, ready for the assistant to speak."""
        if self.source is None:
            return [*self._bos(), *self.tokenizer.encode(_plain(messages))]
        return self.tokenizer.encode(self.render(messages, tools, generate=True))

    def tokens(self, messages: Sequence[Message], tools: Tools = None) -> Tokens:
        """Tokens of a whole conversation; said are the assistant's, each turn's end token included."""
        if self.source is None:
            return self._plain_tokens(messages)
        text, spans = _parted(self._rendered(messages, tools, generate=False))
        if not spans:
            spans = [
                self._span(messages, tools, turn, text)
                for turn, message in enumerate(messages)
                if message["role"] == "assistant"
            ]
        ids, starts = self.tokenizer.encode_with_starts(text)
        said = [False] * len(ids)
        for begin, end in spans:
            inside = [i for i, start in enumerate(starts) if begin <= start < end]
            for i in self._with_end_of_turn(ids, inside):
                said[i] = True
        return Tokens(ids, said)

    def between(self, messages: Sequence[Message], *, has_end: bool) -> list[int]:
        """Tokens from the end of an assistant's turn to where it speaks again, with `messages` in between.

        has_end: its own tokens hold the turn's end token already. What was said is never turned into tokens again: the
        template is asked about a turn that says something else, and what it writes after that is taken. What reads
        like a special token in a message is none."""
        if self.source is None:
            raise DataError(_NO_TEMPLATE)
        plain = [{**message, "content": self._without_specials(str(message["content"]))} for message in messages]
        said, after = self._after_a_turn(plain)
        ids = self.tokenizer.encode(after)
        end = next((n for n, token in enumerate(ids) if token in self.tokenizer.eos_ids), None)
        if not said or end is None:
            raise DataError(
                "chat template: writes no end token after an assistant's turn that others follow, so a conversation "
                "cannot go on; hint: name another one in spec.model.chatTemplate"
            )
        return ids[end + 1 :] if has_end else ids[end:]

    def _after_a_turn(self, messages: Sequence[Message]) -> tuple[str, str]:
        """What the template writes after an assistant's turn, and the mark of that turn, empty where it is lost. Some
        templates take a tool's message only after a turn that calls that tool (gpt-oss), some not at all (Gemma): then
        the user tells what the tools said."""
        user, turn = {"role": "user", "content": "?"}, {"role": "assistant", "content": _SAID}
        ways = [[turn, *messages]]
        if messages[0]["role"] == "tool":
            ways += [[_calling(messages[0]), *messages], [turn, _told(messages)]]
        refused: list[DataError] = []
        for way in ways:
            try:
                return self.render([user, *way], generate=True).partition(_SAID)[1:]
            except DataError as error:
                refused.append(error)
        raise refused[0]

    def _without_specials(self, text: str) -> str:
        """A special token's text would be read as that token: it is parted."""
        for token in self.tokenizer.special_texts:
            text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def text_tokens(self, text: str) -> Tokens:
        """Tokens of plain text between beginning and end token; all but the first are learned."""
        body = self.tokenizer.encode(text)
        ids = [*self._bos(), *body, self.tokenizer.eos_ids[0]]
        return Tokens(ids, [False] * len(self._bos()) + [True] * (len(body) + 1))

    def render(self, messages: Sequence[Message], tools: Tools = None, *, generate: bool) -> str:
        """The template's text for these messages; `generate` ends it where the assistant is to speak."""
        return _parted(self._rendered(messages, tools, generate=generate))[0]

    def _rendered(self, messages: Sequence[Message], tools: Tools, *, generate: bool) -> str:
        """The template's text, with the marks of what the assistant says, where the template has any."""
        known = {
            "bos_token": self.tokenizer.bos_id,
            "eos_token": self.tokenizer.eos_ids[0],
            "pad_token": self.tokenizer.pad_id,
        }
        special = {name: self.tokenizer.token(token) for name, token in known.items() if token is not None}
        try:
            return self._template.render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=generate, **special
            )
        except jinja2.TemplateError as error:
            raise DataError(f"chat template: {error}") from error
        except Exception as error:  # a template is a checkpoint's code: whatever it raises is about these messages
            raise DataError(f"chat template: cannot be applied to {_roles(messages)}: {error}") from error

    @cached_property
    def _template(self) -> jinja2.Template:
        try:
            return _environment().from_string(self.source or "")
        except jinja2.TemplateError as error:
            raise DataError(f"chat template: is not valid Jinja: {error}; hint: see spec.model.chatTemplate") from error

    def _span(self, messages: Sequence[Message], tools: Tools, turn: int, text: str) -> tuple[int, int]:
        """Characters that the assistant says in this turn."""
        before = self.render(messages[:turn], tools, generate=True)
        after = self.render(messages[: turn + 1], tools, generate=False)
        if not (text.startswith(after) and after.startswith(before)):
            raise DataError(
                f"chat template: the text before assistant turn {turn} is not a prefix of the whole conversation, so "
                "the assistant's tokens cannot be told apart; hint: name another one in spec.model.chatTemplate, with "
                "{% generation %} … {% endgeneration %} around what the assistant says"
            )
        return len(before), len(after)

    def _with_end_of_turn(self, ids: list[int], inside: list[int]) -> list[int]:
        """Up to the end token and with it. Templates write a newline after it, which the model never has to say, and
        some end what they mark before it, though a model that never learns it never stops."""
        ends = [n for n, i in enumerate(inside) if ids[i] in self.tokenizer.eos_ids]
        if ends:
            return inside[: ends[-1] + 1]
        after = inside[-1] + 1 if inside else len(ids)
        return [*inside, after] if after < len(ids) and ids[after] in self.tokenizer.eos_ids else inside

    def _plain_tokens(self, messages: Sequence[Message]) -> Tokens:
        if [m["role"] for m in messages].count("assistant") > 1:
            raise DataError(_NO_TEMPLATE)
        prompt = self.prompt_ids([m for m in messages if m["role"] != "assistant"])
        completion = [t for m in messages if m["role"] == "assistant" for t in self.tokenizer.encode(m["content"])]
        ends = [self.tokenizer.eos_ids[0]]
        return Tokens([*prompt, *completion, *ends], [False] * len(prompt) + [True] * (len(completion) + 1))

    def _bos(self) -> list[int]:
        return [] if self.tokenizer.bos_id is None else [self.tokenizer.bos_id]


def _plain(messages: Sequence[Message]) -> str:
    return "\n".join(str(m["content"]) for m in messages)


def _roles(messages: Sequence[Message]) -> str:
    return "roles " + ", ".join(str(m.get("role")) for m in messages)


def _calling(result: Message) -> Message:
    """An assistant's turn that calls the tool of this result, and says `_SAID`."""
    function = {"name": result.get("name", "tool"), "arguments": {"?": _SAID}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def _told(results: Sequence[Message]) -> Message:
    """Results of tools in a user's words, fenced as Gemini's are."""
    return {"role": "user", "content": "\n".join(f"```tool_output\n{m['content']}\n```" for m in results)}


_NO_TEMPLATE = (
    "the model has no chat template, so a conversation of several turns cannot be written; "
    "hint: name one in spec.model.chatTemplate"
)
_SAID = "\ufdd2"
"""Stands for what an assistant said: as free of meaning as the marks below."""
BEGIN, END = "\ufdd0", "\ufdd1"
"""Around what a template marks as the assistant's. Unicode keeps them free for such use: no text holds them."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks what the assistant says."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        return f"{BEGIN}{caller()}{END}"


def _parted(rendered: str) -> tuple[str, list[tuple[int, int]]]:
    """Text without marks, and the characters that were between them."""
    text, *marked = rendered.split(BEGIN)
    spans = []
    for part in marked:
        said, _, rest = part.partition(END)
        spans.append((len(text), len(text) + len(said)))
        text += said + rest
    return text, spans


def _environment() -> ImmutableSandboxedEnvironment:
    """Trimming, tojson and the functions that checkpoints' templates expect."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes what HTML would."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
