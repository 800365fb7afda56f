"""Tools of a request: functions that the model is told of, and what of its answer is a call of one.

The text of an answer is parsed as in rollouts, by the format that the chat template teaches. While it grows, only what
cannot be a call is shown.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from pttrainer.commands.model.answers import State, settled
from pttrainer.commands.model.openai_api.errors import RequestError
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.environments import tool_call_parsing, tool_call_writing

Json = dict[str, Any]
NAME = r"^[A-Za-z0-9_-]{1,64}$"
HIDDEN = {
    "hermes": ((), ("<tool_call>",)),
    "llama": (("{", "<|python_tag|>"), ()),
    "mistral": ((), ("[TOOL_CALLS]",)),
    "harmony": (("",), ()),
    "gemma": (("{", "[", "```"), ("```tool_code", "<|tool_call>")),
}
"""What a call begins with in each format: at the start of a turn, and anywhere in it."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Function(_Strict):
    """A function that the model may call; its parameters are a JSON schema."""

    name: str = Field(pattern=NAME)
    description: str = ""
    parameters: Json = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: Literal[False] | None = None


class Tool(_Strict):
    """A tool of a request."""

    type: Literal["function"]
    function: Function


class _Name(_Strict):
    name: str


class Choice(_Strict):
    """The function that has to be called."""

    type: Literal["function"]
    function: _Name


class Turn(NamedTuple):
    """What the model said besides calls, and its calls as text: a name and arguments each."""

    content: str
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Offer:
    """The tools that an answer may call. begun: what it was made to begin with; forced: the function, if it was one."""

    chat: Chat
    schemas: tuple[Json, ...]
    begun: str = ""
    forced: str | None = None
    is_parallel: bool = True

    @property
    def form(self) -> str:
        """Return the format of calls."""
        return tool_call_parsing.format_of(self.chat.source)

    def check_shown(self, rendered: str) -> None:
        """Raise RequestError if the model is not told of every tool: some chat templates write none."""
        for schema in self.schemas:
            name = schema["function"]["name"]
            if name not in rendered:
                raise RequestError(
                    "tools",
                    name,
                    "the model's chat template writes no tools, and no message names this one; accepted: tools that a "
                    "system message describes, as in the data that the model learned from",
                )

    def turn(self, state: State) -> Turn:
        """Return what is known of an answer."""
        text = self.begun + state.text
        if state.finish is None:
            return Turn(self._shown(text))
        calls = tool_call_parsing.parse_calls(self.form, text)
        if calls and not any(call.error for call in calls):
            kept = calls if self.is_parallel else calls[:1]
            written = tuple((call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in kept)
            return Turn(self._shown(text), written)
        if self.forced is not None:  # as OpenAI's: the arguments are the model's own, and may be no valid JSON
            return Turn("", ((self.forced, _arguments(state.text)),))
        if self.form == "harmony":
            text = text.rpartition("<|channel|>final<|message|>")[2]
        return Turn(self._plain(text))

    def _shown(self, text: str) -> str:
        """Return the beginning of a text that is no call and cannot become one."""
        starts, marks = HIDDEN[self.form]
        start = text.lstrip()
        if not start or any(start.startswith(mark) or mark.startswith(start) for mark in starts):
            return ""
        places = [text.index(mark) for mark in marks if mark in text]
        return self._plain(text[: min(places)] if places else text[: settled(text, marks)])

    def _plain(self, text: str) -> str:
        """Return text without special tokens, which an answer without tools has not either."""
        for special in self.chat.tokenizer.special_texts:
            text = text.replace(special, "")
        return text


def offer(
    tools: Sequence[Tool] | None, choice: str | Choice | None, chat: Chat, *, is_parallel: bool = True
) -> Offer | None:
    """Return the tools that may be called; None if none may. Raises RequestError."""
    names = [tool.function.name for tool in tools or ()]
    if choice is not None and not names:
        raise RequestError("tool_choice", choice if isinstance(choice, str) else "function", "needs tools")
    if not names or choice == "none":
        return None
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RequestError("tools", twice, "two tools have this name")
    forced = choice.function.name if isinstance(choice, Choice) else None
    if forced is not None and forced not in names:
        raise RequestError("tool_choice", forced, f"accepted: {', '.join(names)}")
    if choice == "required" and len(names) == 1:
        forced = names[0]
    schemas = tuple(tool.model_dump(exclude_none=True) for tool in tools or ())
    begun = ""
    if forced is not None or choice == "required":
        begun = tool_call_writing.beginning(tool_call_parsing.format_of(chat.source), chat.source, forced)
    return Offer(chat, schemas, begun, forced, is_parallel)


def called(name: str, arguments: str) -> Json:
    """Return a call in OpenAI's form. Its id has 9 letters and digits, because Mistral's templates want these."""
    return {
        "id": secrets.token_hex(5)[:9],
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _arguments(text: str) -> str:
    """Return the arguments of a call whose beginning was given, as far as they can be told from its end."""
    for end in ("</tool_call>", "<tool_call|>"):
        text = text.partition(end)[0]
    return text.strip()
