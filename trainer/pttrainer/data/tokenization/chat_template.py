"""Conversations to tokens, by the model's own chat template.

Templates are code from a checkpoint, so they run in Jinja's immutable sandbox. A conversation is rendered once and
tokenised once. The template marks the assistant's tokens (`{% generation %}`); without marks they are located by
rendering the conversation up to each assistant turn (with the generation prompt) and up to its end, and comparing
prefixes. If the shorter text is not a prefix of the longer one, a mask would be a guess, so the template is refused.

A base model without a template gets plain text: beginning token, prompt, completion, end token.

An image is a part of a message, for which the template writes a mark (`image_tokens`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jinja2

from pttrainer.data.sources.images.in_messages import image_parts
from pttrainer.data.tokenization import image_tokens, jinja_sandbox
from pttrainer.data.tokenization.image_tokens import ImageTokens
from pttrainer.data.tokenization.jinja_sandbox import BEGIN, END
from pttrainer.data.tokenization.pixels import AnyFormat
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.errors import ConfigError, DataError

Message = Mapping[str, Any]
Tools = Sequence[Any] | None
"""Functions that the assistant may call, as JSON schemas."""


@dataclass(frozen=True)
class Tokens:
    """Token ids, and which of them are the assistant's, which the model learns."""

    ids: list[int]
    assistant_mask: list[bool]


@dataclass(frozen=True)
class Chat:
    """A tokenizer and its template."""

    tokenizer: Tokenizer
    source: str | None
    """Jinja text; None for a base model."""
    images: ImageTokens | None = None
    """Tokens of an image; None for a model that takes none."""
    pixels: AnyFormat | None = None
    """What becomes of a picture, for such a model."""

    @property
    def image_ids(self) -> frozenset[int]:
        """Return the tokens that are of images, which are never learned."""
        return frozenset() if self.images is None else self.images.ids

    def prompt_ids(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Return the tokens of a conversation, ready for the assistant's turn."""
        if self.source is None:
            return [*self._bos(), *self.tokenizer.encode(self._plain(messages))]
        return self.tokenizer.encode(self.render(messages, tools, generate=True))

    def ids(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Return the tokens of a whole conversation, whoever says what."""
        if self.source is None:
            return self._plain_tokens(messages).ids
        return self.tokenizer.encode(self.render(messages, tools, generate=False))

    def tokens(self, messages: Sequence[Message], tools: Tools = None) -> Tokens:
        """Return the tokens of a whole conversation; each assistant turn includes its end token."""
        if self.source is None:
            return self._plain_tokens(messages)
        text, spans = _split_marks(self._rendered(messages, tools, generate=False))
        if not spans:
            spans = [
                self._span(messages, tools, turn, text)
                for turn, message in enumerate(messages)
                if message["role"] == "assistant"
            ]
        ids, starts = self.tokenizer.encode_with_starts(text)
        assistant_mask = [False] * len(ids)
        for begin, end in spans:
            inside = [i for i, start in enumerate(starts) if begin <= start < end]
            for i in self._with_end_of_turn(ids, inside):
                assistant_mask[i] = ids[i] not in self.image_ids
        return Tokens(ids, assistant_mask)

    def between(self, messages: Sequence[Message], *, has_end: bool) -> list[int]:
        """Return the tokens from the end of an assistant's turn to its next one, with `messages` in between.

        has_end: the turn's own tokens include its end token. Sampled tokens are never decoded and encoded
        again: the template renders a turn with a placeholder, and only the text after it is used. Text of a
        message that looks like a special token is not encoded as one.
        """
        if self.source is None:
            raise DataError(_NO_TEMPLATE)
        plain = [{**message, "content": self.without_specials(str(message["content"]))} for message in messages]
        marker, after = self._after_a_turn(plain)
        ids = self.tokenizer.encode(after)
        end = next((n for n, token in enumerate(ids) if token in self.tokenizer.eos_ids), None)
        if not marker or end is None:
            raise DataError(
                "chat template: writes no end token after an assistant's turn that others follow, so a conversation "
                "cannot go on; hint: name another one in spec.model.chatTemplate"
            )
        return ids[end + 1 :] if has_end else ids[end:]

    def _after_a_turn(self, messages: Sequence[Message]) -> tuple[str, str]:
        """Return the template's text after an assistant's turn, and that turn's mark, empty if it is lost.

        Some templates take a tool's message only after a turn that calls that tool (gpt-oss), some not at all
        (Gemma): then a user message carries the results.
        """
        user, turn = {"role": "user", "content": "?"}, {"role": "assistant", "content": _TURN_MARK}
        ways = [[turn, *messages]]
        if messages[0]["role"] == "tool":
            ways += [[_calling(messages[0]), *messages], [turn, as_user_message(messages)]]
        refused: list[DataError] = []
        for way in ways:
            try:
                return self.render([user, *way], generate=True).partition(_TURN_MARK)[1:]
            except DataError as error:
                refused.append(error)
        raise refused[0]

    def without_specials(self, text: str) -> str:
        """Return text whose special tokens are broken up: they would be encoded as such."""
        for token in self.tokenizer.special_texts:
            text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def text_tokens(self, text: str) -> Tokens:
        """Return the tokens of plain text between beginning and end token; all but the first are learned."""
        body = self.tokenizer.encode(image_tokens.expanded(text, (), self.images))
        ids = [*self._bos(), *body, self.tokenizer.eos_ids[0]]
        return Tokens(ids, [False] * len(self._bos()) + [True] * (len(body) + 1))

    def render(self, messages: Sequence[Message], tools: Tools = None, *, generate: bool) -> str:
        """Return the template's text for these messages; `generate` ends it with the generation prompt."""
        return _split_marks(self._rendered(messages, tools, generate=generate))[0]

    def _rendered(self, messages: Sequence[Message], tools: Tools, *, generate: bool) -> str:
        """Return the template's text, including the marks of the assistant's turns if the template has any."""
        special_ids = {
            "bos_token": self.tokenizer.bos_id,
            "eos_token": self.tokenizer.eos_ids[0],
            "pad_token": self.tokenizer.pad_id,
        }
        special = {name: self.tokenizer.token(token) for name, token in special_ids.items() if token is not None}
        try:
            rendered = jinja_sandbox.render(
                self._template,
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=generate,
                **special,
            )
        except jinja_sandbox.TimeLimitError:
            raise ConfigError(
                f"spec.model.chatTemplate: needs more than {jinja_sandbox.LIMIT_S:g} s for {len(messages)} messages; "
                "accepted: a template that ends; hint: the model's own is used where the field is unset"
            ) from None
        except jinja2.TemplateError as error:
            raise DataError(f"chat template: {error}") from error
        except Exception as error:  # templates are a checkpoint's code: any exception is about these messages
            raise DataError(f"chat template: cannot be applied to {_roles(messages)}: {error}") from error
        return image_tokens.expanded(rendered, messages, self.images)

    @cached_property
    def _template(self) -> jinja2.Template:
        try:
            return jinja_sandbox.compiled(self.source or "")
        except jinja2.TemplateError as error:
            raise DataError(f"chat template: is not valid Jinja: {error}; hint: see spec.model.chatTemplate") from error

    def _span(self, messages: Sequence[Message], tools: Tools, turn: int, text: str) -> tuple[int, int]:
        """Return the characters of the assistant's turn."""
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
        """Return the turn's token indices up to and including its end token.

        Templates write a newline after it, which the model never has to produce, and some end the marked text
        before it, though a model that never learns it never stops.
        """
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

    def _plain(self, messages: Sequence[Message]) -> str:
        if any(image_parts(message) for message in messages):
            raise DataError("has images, which need a chat template; hint: name one in spec.model.chatTemplate")
        return image_tokens.expanded("\n".join(str(m["content"]) for m in messages), messages, self.images)


def _roles(messages: Sequence[Message]) -> str:
    return "roles " + ", ".join(str(m.get("role")) for m in messages)


def _calling(result: Message) -> Message:
    """Return an assistant's turn that calls the tool of this result, with `_TURN_MARK` as its text."""
    function = {"name": result.get("name", "tool"), "arguments": {"?": _TURN_MARK}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def as_user_message(results: Sequence[Message]) -> Message:
    """Return the results of tools as a user message, fenced like Gemini's."""
    return {"role": "user", "content": "\n".join(f"```tool_output\n{m['content']}\n```" for m in results)}


_NO_TEMPLATE = (
    "the model has no chat template, so a conversation of several turns cannot be written; "
    "hint: name one in spec.model.chatTemplate"
)
_TURN_MARK = "\ufdd2"
"""Stands for an assistant's text: as free of meaning as the marks around what it marks."""


def _split_marks(rendered: str) -> tuple[str, list[tuple[int, int]]]:
    """Return text without marks, and the character ranges that were between them."""
    text, *marked = rendered.split(BEGIN)
    spans = []
    for part in marked:
        inside, _, rest = part.partition(END)
        spans.append((len(text), len(text) + len(inside)))
        text += inside + rest
    return text, spans
