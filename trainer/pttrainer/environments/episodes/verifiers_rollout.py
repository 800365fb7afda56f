"""One rollout of a `verifiers` environment: its own code runs it, and waits wherever it asks the model for a turn.

    environment.rollout(input, client, …)  ──chat.completions.create──▶  `Policy`  ──▶  messages, for the trainer
                                           ◀──────ChatCompletion───────            ◀──  the sampled turn

Between turns the rollout is a suspended task, so whatever the environment overrides (state, stop conditions, tools,
rubrics) stays its own. The model's calls go in as OpenAI's `tool_calls`; a call that cannot be read is text, as with
servers. Once the trainer has no more turns for an episode, the policy answers as a server does whose context is full,
which ends the rollout as truncated.

A conversation may only grow: the trainer continues from the very tokens that it sampled.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from openai import BadRequestError
from openai.types.chat import ChatCompletion

from pttrainer.environments.tool_call_parsing import parse_calls
from pttrainer.sandbox.user_code import RewardCodeError, ServerGone, describe

Message = dict[str, Any]
_FULL = '{"error":{"message":"This model\'s maximum context length is reached"}}'
"""What vLLM answers then; every release of `verifiers` knows the beginning."""
_CALL_MARKS = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "gemma": "<|tool_call>"}
_OBSERVED = ("user", "tool", "system")
_NO_SERVICE = "InfraError"
"""The class of `verifiers`' errors of sandboxes, tunnels and other services."""


class Policy:
    """The model, as OpenAI's asynchronous client offers it. form: of tool calls; on_request: called for each turn."""

    def __init__(self, form: str, on_request: Callable[[], None]) -> None:
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))
        self.messages: list[Message] = []
        self.tools: list[str] = []
        self.calls = self.failed = 0
        self.names: dict[str, str] = {}
        self._form, self._on_request, self._number = form, on_request, 0
        self._reply: asyncio.Future[ChatCompletion] | None = None
        self._is_over = False

    def answer(self, text: str, *, is_cut: bool = False) -> None:
        """Give the turn that was asked for. is_cut: it was stopped by the limit of its length."""
        reply, self._reply = self._reply, None
        assert reply is not None
        reply.set_result(self._completion(text, is_cut=is_cut))

    def end(self) -> None:
        """Give no more turns."""
        self._is_over = True
        if self._reply is not None:
            self._reply.set_exception(_full())
            self._reply = None

    async def post(self, _: str, *, body: Mapping[str, Any], **__: Any) -> Any:
        """Return the response to a request for a turn, as releases from 0.2 on make it."""
        completion = await self._create(messages=body["messages"], tools=body.get("tools"))
        return SimpleNamespace(content=completion.model_dump_json().encode())

    async def _create(self, *, messages: Sequence[Any], tools: Any = None, **_: Any) -> ChatCompletion:
        if self._is_over:
            raise _full()
        if self._reply is not None:
            raise RewardCodeError("asks for a second turn while the model speaks; accepted: one at a time")
        self.messages = [_plain(message) for message in messages]
        self.tools = [tool["function"]["name"] for tool in tools or ()]
        self._reply = asyncio.get_running_loop().create_future()
        self._on_request()
        return await self._reply

    def _completion(self, text: str, *, is_cut: bool) -> ChatCompletion:
        calls = [] if is_cut or not self.tools else parse_calls(self._form, text)
        self.calls += len(calls)
        if any(call.error for call in calls):
            self.failed, calls = self.failed + len(calls), []
        content = text.partition(_CALL_MARKS[self._form])[0] if calls and self._form in _CALL_MARKS else text
        written = [self._call(call.name, call.arguments) for call in calls]
        # Without any content the clients of `verifiers` take the model for a server that failed.
        message = {"role": "assistant", "content": content or (None if written else " "), "tool_calls": written or None}
        reason = "length" if is_cut else "tool_calls" if written else "stop"
        choice = {"index": 0, "finish_reason": reason, "message": message}
        document = {"id": "turn", "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]}
        return ChatCompletion.model_validate(document)

    def _call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        self._number += 1
        own = f"call{self._number:05d}"  # nine characters: Mistral's templates take no other length
        self.names[own] = name
        return {"id": own, "type": "function", "function": {"name": name, "arguments": json.dumps(dict(arguments))}}


class Rollout:
    """A rollout that waits for turns. run: begins it; tools: names of those that the model is told of."""

    def __init__(self, run: Callable[[Policy], Coroutine[Any, Any, Any]], form: str, tools: Sequence[str]) -> None:
        self._paused = asyncio.Event()
        self._policy = Policy(form, self._paused.set)
        self._run, self._tools = run, sorted(tools)
        self._task: asyncio.Task[Any] | None = None

    async def begin(self) -> list[Message]:
        """Return the conversation that the model is first asked to continue. Raises RewardCodeError."""
        self._task = asyncio.create_task(self._run(self._policy))
        self._task.add_done_callback(lambda _: self._paused.set())
        await self._paused.wait()
        if self._task.done():
            self.state()
            raise RewardCodeError("the rollout ended before the model's first turn")
        if sorted(self._policy.tools) != self._tools:
            raise RewardCodeError(
                f"offers tools that change: {', '.join(self._policy.tools) or 'none'}; accepted: those that it has "
                f"when it is loaded: {', '.join(self._tools) or 'none'}"
            )
        return self._policy.messages

    async def step(self, text: str, *, is_cut: bool = False) -> list[Message] | None:
        """Return what the environment says to a turn; None once the rollout is over. Raises RewardCodeError."""
        assert self._task is not None
        before = self._policy.messages
        if not self._task.done():  # it may have ended by itself meanwhile
            self._paused.clear()
            self._policy.answer(text, is_cut=is_cut)
            await self._paused.wait()
        if self._task.done():
            self.state()
            return None
        return self._observed(before, self._policy.messages)

    def counts(self) -> list[int]:
        """Return the calls since the last time, and how many of them could not be read."""
        counts = [self._policy.calls, self._policy.failed]
        self._policy.calls = self._policy.failed = 0
        return counts

    async def end(self, cut: str | None) -> Any:
        """Return the state of a rollout that gets no more turns after `cut`. Raises RewardCodeError."""
        assert self._task is not None
        if not self._task.done() and cut is not None:
            await self.step(cut, is_cut=True)
        if not self._task.done():
            self._policy.end()
            await asyncio.wait([self._task])
        return self.state()

    def state(self) -> Any:
        """Return the state of a rollout that is over; raise RewardCodeError if it failed."""
        assert self._task is not None
        error = self._task.exception()
        state = {} if error is not None else self._task.result()
        error = error or state.get("error")
        if error is None:
            return state
        if isinstance(error, RewardCodeError):
            raise error
        is_lost = any(kind.__name__ == _NO_SERVICE for kind in type(error).__mro__)
        cause = f" ({describe(error.__cause__)})" if error.__cause__ is not None else ""
        raise (ServerGone if is_lost else RewardCodeError)(f"raised {describe(error)}{cause}") from error

    async def close(self) -> None:
        """Stop a rollout that is not over; its environment cleans up."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    def _observed(self, before: Sequence[Message], now: Sequence[Message]) -> list[Message]:
        kept, turn, new = now[: len(before)], now[len(before) : len(before) + 1], now[len(before) + 1 :]
        if [_read(one) for one in kept] != [_read(one) for one in before] or [m["role"] for m in turn] != ["assistant"]:
            raise RewardCodeError("rewrites the conversation between turns; accepted: one that only grows")
        wrong = next((message["role"] for message in new if message["role"] not in _OBSERVED), None)
        if wrong is not None or not new:
            raise RewardCodeError(f"answers a turn as {wrong or 'nobody'!r}; accepted: {', '.join(_OBSERVED)}")
        # Few templates write a system's message after the first one.
        return [{**one, "name": self._name(one)} if one["role"] == "tool" else {**one, "role": "user"} for one in new]

    def _name(self, answer: Message) -> str:
        """Return the name for the template: never text of the model's own, which may be anything."""
        name = self._policy.names.get(answer["tool_call_id"], "")
        return name if name in self._tools else "tool"


def _full() -> BadRequestError:
    response: Any = SimpleNamespace(request=None, status_code=400, headers={}, text=_FULL)
    return BadRequestError("This model's maximum context length is reached", response=response, body=None)


def _read(message: Message) -> tuple[str, str]:
    return message["role"], message["content"]


def _plain(message: Any) -> Message:
    """Return a message as role and text, and the id of the call that a tool's one answers."""
    fields = message if isinstance(message, Mapping) else message.model_dump()
    plain: Message = {"role": fields["role"], "content": text_of(fields.get("content"))}
    return {**plain, "tool_call_id": fields.get("tool_call_id") or ""} if plain["role"] == "tool" else plain


def text_of(content: Any) -> str:
    """Return a message's content as text; what is none is named."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part if isinstance(part, Mapping) else part.model_dump() for part in content]
    return "\n".join(
        str(part["text"]) if part.get("type") == "text" else f"({part.get('type')} that cannot be shown)"
        for part in parts
    )
