"""Who answers in a chat: a model that this process loads, or a server with OpenAI's API.

Both take messages and tools as that API has them, yield an answer's text while it comes, and return its message.
"""

import http.client
import json
import secrets
import threading
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pttrainer.errors import ConfigError, NetworkError

if TYPE_CHECKING:
    from pttrainer.commands.model.answers import Request, State
    from pttrainer.commands.model.batches import Batches
    from pttrainer.commands.model.loaded_model import LoadedModel

Message = dict[str, Any]
Answer = Generator[str, None, Message]
SCHEMES = ("http://", "https://")
SILENT_S = 600.0
"""A server's silence is an error after this time: its first answer may wait until a program is compiled."""


class Options(NamedTuple):
    """How answers are sampled. max_tokens: None for what is left; seed: None for a new one each time."""

    temperature: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None


class Speaker(Protocol):
    """Answers messages."""

    name: str

    def answer(self, messages: Sequence[Message], tools: Sequence[Message]) -> Answer:
        """Yield the text of the next turn, and return its message. Raises ConfigError or NetworkError."""
        ...


class LocalModel:
    """A model of this process."""

    def __init__(self, model: "LoadedModel", batches: "Batches", options: Options) -> None:
        self.name, self._model, self._batches, self._options = model.name, model, batches, options

    def answer(self, messages: Sequence[Message], tools: Sequence[Message]) -> Answer:
        """Sample the next turn."""
        from pttrainer.commands.model.openai_api import requests
        from pttrainer.commands.model.openai_api.errors import RequestError
        from pttrainer.commands.model.openai_api.messages import ImageAccess, conversation
        from pttrainer.commands.model.openai_api.replies import message_of
        from pttrainer.commands.model.openai_api.tools import Tool, Turn, offer

        seed = secrets.randbits(32) if self._options.seed is None else self._options.seed
        try:
            offered = offer([Tool.model_validate(tool) for tool in tools], None, self._model.chat)
            request = requests.chat_request(
                self._model,
                conversation(messages, ImageAccess()),
                offered,
                self._options.max_tokens,
                temperature=self._options.temperature,
                seed=seed,
            )
        except RequestError as error:
            hint = "; hint: /reset forgets the conversation" if error.param == requests.TOO_LONG else ""
            raise ConfigError(f"{error}{hint}") from error
        shown, turn = "", Turn("")
        for state in states(self._batches, self._model, request):
            turn = Turn(state.text) if offered is None else offered.turn(state)
            yield turn.content[len(shown) :]
            shown = turn.content
        return message_of(turn)


def states(batches: "Batches", model: "LoadedModel", request: "Request") -> Iterator["State"]:
    """Yield an answer as it grows, its end included."""
    from pttrainer.commands.model import answers

    changed, is_done = threading.Semaphore(0), False
    answer = answers.Answer(request, model.chat.tokenizer, changed.release)
    batches.submit(answer)
    while not is_done:
        changed.acquire()
        is_done = answer.is_done  # before the state: the last one may come between the two
        if answer.error is None:
            yield answer.state
    if answer.error is not None:
        raise answer.error


class Server:
    """A server at `http://HOST:PORT/v1`, or `…#MODEL` where it has several. Raises ConfigError or NetworkError."""

    def __init__(self, url: str, options: Options) -> None:
        self._url, _, name = url.partition("#")
        self._url, self._options = self._url.rstrip("/"), options
        self.name = name or self._only_model()

    def answer(self, messages: Sequence[Message], tools: Sequence[Message]) -> Answer:
        """Ask for the next turn, as a stream."""
        sampling = {"temperature": self._options.temperature, "max_tokens": self._options.max_tokens}
        body = {"model": self.name, "messages": list(messages), "tools": list(tools), **sampling}
        body |= {"seed": self._options.seed, "stream": True}
        message: Message = {"role": "assistant", "content": ""}
        for event in self._events({key: value for key, value in body.items() if value not in (None, [])}):
            for choice in event["choices"]:
                text = choice["delta"].get("content") or ""
                _add_calls(message, choice["delta"].get("tool_calls") or ())
                message["content"] += text
                yield text
        return message

    def _events(self, body: Message) -> Iterator[Message]:
        with self._open("/chat/completions", json.dumps(body).encode()) as lines:
            for line in lines:
                data = line.decode().removeprefix("data:").strip()
                if data and data != "[DONE]":
                    event: Message = json.loads(data)
                    if "error" in event:
                        raise ConfigError(f"{self._url}: {event['error']['message']}")
                    yield event

    def _only_model(self) -> str:
        with self._open("/models") as answer:
            names = [str(model["id"]) for model in json.load(answer)["data"]]
        if len(names) != 1:
            raise ConfigError(f"{self._url}: has {len(names)} models; accepted: {self._url}#NAME: {', '.join(names)}")
        return names[0]

    def _open(self, path: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(f"{self._url}{path}", body, {"Content-Type": "application/json"})
        try:
            return urllib.request.urlopen(request, timeout=SILENT_S)
        except urllib.error.HTTPError as error:
            raise ConfigError(f"{self._url}: {_message_of(error)}") from error
        except (OSError, http.client.HTTPException) as error:
            raise NetworkError(
                f"{self._url}: {error}; accepted: the address of a server that runs, with /v1"
            ) from error


def _add_calls(message: Message, deltas: Sequence[Message]) -> None:
    """Add parts of calls: a first one has id and name, those behind it more of the arguments."""
    for delta in deltas:
        calls = message.setdefault("tool_calls", [])
        if delta["index"] >= len(calls):
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call, function = calls[delta["index"]], delta.get("function") or {}
        call["id"] += delta.get("id") or ""
        for part in ("name", "arguments"):
            call["function"][part] += function.get(part) or ""


def _message_of(error: urllib.error.HTTPError) -> str:
    """Return the message of an error object of OpenAI's, or what there is."""
    content = error.read()
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
