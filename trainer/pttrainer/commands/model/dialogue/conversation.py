"""A conversation in the terminal: messages, pictures, answers while they come, and calls of tools with their results.

Answers are on stdout; calls and results are for people, on stderr.
"""

import base64
import mimetypes
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pttrainer.commands import note
from pttrainer.commands.model.dialogue.speakers import Message, Speaker
from pttrainer.errors import ConfigError

if TYPE_CHECKING:
    from pttrainer.commands.model.dialogue.tools import Tools

MOST_ROUNDS = 8
"""Turns with calls after one message: a model may call for ever."""
SHOWN = 500
"""Most characters of a result that are shown."""


class Conversation:
    """A model, and what was exchanged with it so far."""

    def __init__(self, speaker: Speaker, system: str | None, tools: "Tools | None") -> None:
        self.name, self._speaker, self._tools = speaker.name, speaker, tools
        self._system: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._messages = self._system

    def reset(self) -> None:
        """Forget everything but the system message."""
        self._messages = self._system

    def say(self, text: str, images: Sequence[str]) -> None:
        """Print the answer to a message, and remember both. images: URLs. Raises TrainerError."""
        messages = [*self._messages, _user_message(text, images)]
        for _ in range(MOST_ROUNDS):
            turn = self._print(messages)
            messages = [*messages, turn]
            if not turn.get("tool_calls") or self._tools is None:
                break
            messages += self._results(turn["tool_calls"], self._tools)
        else:
            note(f"the model calls tools again and again; it gets no more than {MOST_ROUNDS} turns for a message")
        self._messages = messages

    def _print(self, messages: Sequence[Message]) -> Message:
        """Print the next turn while it comes, and return its message."""
        pieces = self._speaker.answer(messages, [] if self._tools is None else self._tools.schemas)
        while True:
            try:
                sys.stdout.write(next(pieces))
                sys.stdout.flush()
            except StopIteration as end:
                turn: Message = end.value
                if turn["content"] or not turn.get("tool_calls"):
                    print(flush=True)
                return turn

    def _results(self, calls: Sequence[Message], tools: "Tools") -> list[Message]:
        results = tools.results(calls)
        for call, result in zip(calls, results, strict=True):
            function = call["function"]
            note(f"{function['name']}({function['arguments']}) -> {result[:SHOWN]}")
        pairs = zip(calls, results, strict=True)
        return [{"role": "tool", "tool_call_id": call["id"], "content": result} for call, result in pairs]


def _user_message(text: str, images: Sequence[str]) -> Message:
    if not images:
        return {"role": "user", "content": text}
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def image_url(path: str) -> str:
    """Return a URL that holds the picture of a file. Raises ConfigError."""
    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"image: {path}: {error.strerror}; accepted: a file with a picture") from error
    kind = mimetypes.guess_type(path)[0] or "image/*"
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
