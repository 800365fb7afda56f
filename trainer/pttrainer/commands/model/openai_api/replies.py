"""Answers as OpenAI's API writes them: whole, in chunks of a stream, and errors."""

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from pttrainer.commands.model.answers import INCOMPLETE, State
from pttrainer.commands.model.loaded_model import LoadedModel
from pttrainer.commands.model.openai_api.tools import Offer, Turn, called

Json = dict[str, Any]


def error(message: str, param: str | None = None, code: str | None = None, *, is_ours: bool = False) -> Json:
    """Return the body of an error."""
    kind = "server_error" if is_ours else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def message_of(turn: Turn) -> Json:
    """Return an assistant's message."""
    if not turn.calls:
        return {"role": "assistant", "content": turn.content}
    calls = [called(*call) for call in turn.calls]
    return {"role": "assistant", "content": turn.content or None, "tool_calls": calls}


@dataclass(frozen=True)
class Replies:
    """Writes one request's answer. is_chat: for /v1/chat/completions; prompt_tokens: for its usage; offer: tools."""

    model: LoadedModel
    is_chat: bool
    has_logprobs: bool
    prompt_tokens: int
    offer: Offer | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, state: State) -> Json:
        """Return the answer in one body."""
        turn = self._turn(state)
        message = message_of(turn)
        text = {"message": message} if self.is_chat else {"text": turn.content}
        finish = "tool_calls" if turn.calls else state.finish
        choice = {"index": 0, **text, "logprobs": self._logprobs(state, 0), "finish_reason": finish}
        return {**self._head("chat.completion"), "choices": [choice], "usage": self._usage(state)}

    def role(self) -> Json:
        """Return the first chunk of a chat."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None})

    def chunk(self, before: State, state: State) -> Json:
        """Return what is new since `before`."""
        turn = self._turn(state)
        text = turn.content[len(self._turn(before).content) :]
        delta: Json = {"content": text} if text else {}
        if turn.calls:
            delta["tool_calls"] = [{"index": index, **called(*call)} for index, call in enumerate(turn.calls)]
        part = {"delta": delta} if self.is_chat else {"text": text}
        logprobs, finish = self._logprobs(state, len(before.tokens)), "tool_calls" if turn.calls else state.finish
        return self._chunk({**part, "logprobs": logprobs, "finish_reason": finish})

    def usage(self, state: State) -> Json:
        """Return the chunk with the usage, which ends a stream that wants it."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage(state)}

    def _turn(self, state: State) -> Turn:
        """Return an answer's text so far, and its calls of tools, which are known at its end."""
        return Turn(state.text) if self.offer is None else self.offer.turn(state)

    def _chunk(self, choice: Json) -> Json:
        return {**self._head("chat.completion.chunk"), "choices": [{"index": 0, **choice}]}

    def _head(self, kind: str) -> Json:
        prefix = "chatcmpl" if self.is_chat else "cmpl"
        kind = kind if self.is_chat else "text_completion"
        return {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model.name}

    def _usage(self, state: State) -> Json:
        new = len(state.tokens)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": new,
            "total_tokens": self.prompt_tokens + new,
        }

    def _logprobs(self, state: State, first: int) -> Json | None:
        """Return the log-probs of the tokens from `first` on, at the temperature of the request."""
        if not self.has_logprobs:
            return None
        decode = self.model.chat.tokenizer.decode
        texts = [decode([token], skip_special=False) for token in state.tokens]
        if self.is_chat:
            return {
                "content": [
                    {"token": text, "logprob": logp, "bytes": _bytes(text), "top_logprobs": []}
                    for text, logp in zip(texts[first:], state.logps[first:], strict=True)
                ]
            }
        starts = [len(decode(state.tokens[:number])) for number in range(first, len(texts))]
        logps = list(state.logps[first:])
        return {"tokens": texts[first:], "token_logprobs": logps, "top_logprobs": None, "text_offset": starts}


def _bytes(text: str) -> list[int] | None:
    """Return a token's bytes; None of a part of a character, whose bytes its text does not show."""
    return None if INCOMPLETE in text else list(text.encode())
