"""Bodies of OpenAI's API as requests to the model. What is not supported is refused, never ignored.

`max_completion_tokens` is the newer name of `max_tokens`. `user`, `metadata` and `store` are for OpenAI's own records.
"""

import secrets
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pttrainer.commands.model.answers import Request
from pttrainer.commands.model.loaded_model import LoadedModel
from pttrainer.commands.model.openai_api import messages, tools
from pttrainer.commands.model.openai_api.errors import RequestError
from pttrainer.commands.model.openai_api.messages import Conversation, ImageAccess
from pttrainer.commands.model.openai_api.tools import Choice, Offer, Tool
from pttrainer.data.tokenization import row_images
from pttrainer.errors import TrainerError

TOO_LONG = "messages or prompt"
"""What an error names where a prompt has no room for an answer."""


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
    tools: list[Tool] | None = Field(None, min_length=1)
    tool_choice: Literal["none", "auto", "required"] | Choice | None = None
    parallel_tool_calls: bool = True

    @property
    def has_logprobs(self) -> bool:
        """Return True if the answer lists its tokens' log-probs."""
        return self.logprobs

    @property
    def limit(self) -> int | None:
        """Return the most tokens of the answer; None for what is left."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def offer(self, model: LoadedModel) -> Offer | None:
        """Return the tools that the answer may call. Raises RequestError."""
        return tools.offer(self.tools, self.tool_choice, model.chat, is_parallel=self.parallel_tool_calls)


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
    """Return the field; what follows names branches of its type, except in tools."""
    return ".".join(map(str, loc if loc[0] == "tools" else loc[:1])) if loc else None


def request_of(
    body: ChatBody | CompletionBody, model: LoadedModel, access: ImageAccess
) -> tuple[Request, Offer | None]:
    """Return the request for the engine, and the tools that its answer may call. Raises RequestError."""
    if body.model != model.name:
        raise RequestError("model", body.model, f"not served here; accepted: {model.name}", 404)
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if "" in stop or len(stop) > 4:
        raise RequestError("stop", body.stop, "accepted: up to 4 strings with at least one character each")
    seed = secrets.randbits(32) if body.seed is None else body.seed
    how: dict[str, Any] = {"temperature": body.temperature, "top_p": body.top_p, "stop": stop, "seed": seed}
    if isinstance(body, CompletionBody):
        prompt = body.tokens(model)
        return Request(prompt, within(prompt, body.limit, model.length), **how), None
    offer = body.offer(model)
    conversation = messages.conversation(body.messages, access)
    return chat_request(model, conversation, offer, body.limit, **how), offer


def chat_request(
    model: LoadedModel, conversation: Conversation, offer: Offer | None, limit: int | None, **how: Any
) -> Request:
    """Return the request for the next turn of a conversation. how: fields of the request. Raises RequestError."""
    chat = model.chat
    if conversation.images and chat.images is None:
        raise RequestError("messages", None, "has images, and the model takes none; accepted: text")
    try:
        written = messages.for_template(conversation.messages, chat)
        if offer is None:
            tokens = chat.prompt_ids(written)
        else:
            rendered = chat.render(written, offer.schemas, generate=True)
            offer.check_shown(rendered)
            tokens = chat.tokenizer.encode(rendered + offer.begun)
        [images] = row_images.of_prompts(chat, [(tokens, conversation.images)])
    except TrainerError as error:
        raise RequestError("messages", None, str(error)) from error
    return Request(tokens, within(tokens, limit, model.length), images=images, is_raw=offer is not None, **how)


def within(prompt: list[int], limit: int | None, length: int) -> int:
    """Return the most tokens of an answer. Raises RequestError if prompt and answer are longer than the model takes."""
    room = length - len(prompt)
    if not prompt or room < 1:
        raise RequestError(TOO_LONG, None, f"{len(prompt)} tokens; accepted: 1 to {length - 1}")
    if limit is not None and limit > room:
        raise RequestError(
            "max_tokens",
            limit,
            f"accepted: 1 to {room}, the {length} tokens of the model less {len(prompt)} of the prompt",
        )
    return room if limit is None else limit
