"""Bodies of OpenAI's API as requests to the model. What is not supported is refused, never ignored.

`max_completion_tokens` is the newer name of `max_tokens`. `user`, `metadata` and `store` are for OpenAI's own records.
"""

import secrets
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pttrainer.commands.model.answers import Request
from pttrainer.commands.model.loaded_model import LoadedModel
from pttrainer.errors import TrainerError

SHOWN = 80
"""Most characters of a value in a message."""


class RequestError(Exception):
    """A request that cannot be answered. param: the field; status: of HTTP."""

    def __init__(self, param: str | None, value: Any, accepted: str, status: int = 400) -> None:
        self.param, self.status = param, status
        self.code = "model_not_found" if status == 404 and param == "model" else None
        subject = ": ".join(part for part in (param, _short(value)) if part)
        super().__init__(f"{subject}: {accepted}")


def _short(value: Any) -> str:
    text = "" if value is None else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


class _Body(BaseModel):
    """The fields that both kinds of requests have."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    temperature: float = Field(1.0, ge=0.0, le=2.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    max_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = Field(None, ge=0, lt=2**32)
    stream: bool = False
    stream_options: dict[Literal["include_usage", "include_obfuscation"], bool] | None = None
    n: Literal[1] = 1
    presence_penalty: float = Field(0.0, ge=0.0, le=0.0)
    frequency_penalty: float = Field(0.0, ge=0.0, le=0.0)
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None

    @property
    def has_usage(self) -> bool:
        """Return True if a stream ends with its usage."""
        return (self.stream_options or {}).get("include_usage", False)


class ChatBody(_Body):
    """The body of POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: Literal[0] | None = None

    @property
    def has_logprobs(self) -> bool:
        """Return True if the answer lists its tokens' log-probs."""
        return self.logprobs

    @property
    def limit(self) -> int | None:
        """Return the most tokens of the answer; None for what is left."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def prompt(self, model: LoadedModel) -> list[int]:
        """Return the conversation's tokens by the model's template. Raises RequestError."""
        messages = [_message(message, f"messages.{i}") for i, message in enumerate(self.messages)]
        try:
            return model.chat.prompt_ids(messages)
        except TrainerError as error:
            raise RequestError("messages", None, str(error)) from error


class CompletionBody(_Body):
    """The body of POST /v1/completions."""

    prompt: str | list[int] = Field(min_length=1)
    logprobs: Literal[0] | None = None
    echo: Literal[False] = False
    best_of: Literal[1] = 1

    @property
    def has_logprobs(self) -> bool:
        """Return True if the answer lists its tokens' log-probs."""
        return self.logprobs is not None

    @property
    def limit(self) -> int:
        """Return the most tokens of the answer: 16 if none are named, as OpenAI's."""
        return self.max_tokens or 16

    def tokens(self, model: LoadedModel) -> list[int]:
        """Return the prompt's tokens. Raises RequestError."""
        if isinstance(self.prompt, str):
            return model.chat.tokenizer.encode(self.prompt)
        size = model.chat.tokenizer.size
        if wrong := [token for token in self.prompt if not 0 <= token < size]:
            raise RequestError("prompt", wrong[0], f"accepted: text, or token ids from 0 to {size - 1}")
        return self.prompt


Body = TypeVar("Body", bound=_Body)


def parse(kind: type[Body], content: bytes) -> Body:
    """Return a body. Raises RequestError, naming the first field that is wrong."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise RequestError(None, None, f"the body is not JSON: {first['msg']}; accepted: a JSON object") from error
        if first["type"] == "extra_forbidden":
            fields = ", ".join(sorted(kind.model_fields))
            raise RequestError(str(first["loc"][0]), first["input"], f"not supported; accepted: {fields}") from error
        value = None if first["type"] == "missing" else first["input"]
        message = first["msg"].removeprefix("Input should be ")
        raise RequestError(_param(first["loc"]), value, f"accepted: {message}") from error


def _param(loc: tuple[int | str, ...]) -> str | None:
    """Return the field; what follows names branches of its type."""
    return str(loc[0]) if loc else None


def request_of(body: ChatBody | CompletionBody, model: LoadedModel) -> Request:
    """Return the request for the engine. Raises RequestError."""
    if body.model != model.name:
        raise RequestError("model", body.model, f"not served here; accepted: {model.name}", 404)
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if "" in stop or len(stop) > 4:
        raise RequestError("stop", body.stop, "accepted: up to 4 strings with at least one character each")
    prompt = body.prompt(model) if isinstance(body, ChatBody) else body.tokens(model)
    seed = secrets.randbits(32) if body.seed is None else body.seed
    limit = within(prompt, body.limit, model.length)
    return Request(prompt, limit, body.temperature, body.top_p, stop, seed)


def within(prompt: list[int], limit: int | None, length: int) -> int:
    """Return the most tokens of an answer. Raises RequestError if prompt and answer are longer than the model takes."""
    room = length - len(prompt)
    if not prompt or room < 1:
        raise RequestError("messages or prompt", None, f"{len(prompt)} tokens; accepted: 1 to {length - 1}")
    if limit is not None and limit > room:
        raise RequestError(
            "max_tokens",
            limit,
            f"accepted: 1 to {room}, the {length} tokens of the model less {len(prompt)} of the prompt",
        )
    return room if limit is None else limit


def _message(message: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a message whose content is text. Raises RequestError."""
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "developer", "user", "assistant"):
        raise RequestError(f"{where}.role", role, "accepted: system, developer, user, assistant")
    if isinstance(content, list):
        content = "".join(_part(part, f"{where}.content.{i}") for i, part in enumerate(content))
    if not isinstance(content, str):
        raise RequestError(f"{where}.content", content, "accepted: text, or a list of parts of the type text")
    return {"role": "system" if role == "developer" else role, "content": content}


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        kind = part.get("type") if isinstance(part, dict) else part
        raise RequestError(f"{where}.type", kind, 'accepted: {"type": "text", "text": ...}')
    return str(part["text"])
