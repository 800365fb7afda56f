"""The HTTP side of `serve`: OpenAI's paths, streams of server-sent events, errors in OpenAI's form."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from pttrainer.commands.model.answers import Answer, State
from pttrainer.commands.model.batches import Batches
from pttrainer.commands.model.loaded_model import LoadedModel
from pttrainer.commands.model.openai_api import replies as openai_replies
from pttrainer.commands.model.openai_api.errors import RequestError
from pttrainer.commands.model.openai_api.messages import ImageAccess
from pttrainer.commands.model.openai_api.replies import Replies
from pttrainer.commands.model.openai_api.requests import ChatBody, CompletionBody, parse, request_of

MOST_BYTES = 64 * 2**20
"""Most bytes of a request's body, which may hold pictures."""


def application(model: LoadedModel, batches: Batches, access: ImageAccess) -> web.Application:
    """Return the application that answers for a model. access: where images of requests may lie."""
    server = _Server(model, batches, access)
    app = web.Application(middlewares=[_errors], client_max_size=MOST_BYTES)
    app.add_routes(
        [
            web.get("/health", server.health),
            web.get("/v1/models", server.models),
            web.post("/v1/chat/completions", server.chat),
            web.post("/v1/completions", server.completion),
        ]
    )
    return app


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer errors in OpenAI's form."""
    try:
        return await handler(request)
    except RequestError as error:
        return web.json_response(openai_replies.error(str(error), error.param, error.code), status=error.status)
    except web.HTTPException as error:
        message = f"{request.method} {request.path}: {error.reason}; accepted: GET /v1/models, GET /health, "
        message += f"POST /v1/chat/completions and /v1/completions with at most {MOST_BYTES} bytes"
        return web.json_response(openai_replies.error(message), status=error.status)


class _Server:
    def __init__(self, model: LoadedModel, batches: Batches, access: ImageAccess) -> None:
        self._model, self._batches, self._access = model, batches, access

    async def health(self, _: web.Request) -> web.Response:
        """Answer that the server runs."""
        return web.json_response({"status": "ok"})

    async def models(self, _: web.Request) -> web.Response:
        """List the one model."""
        entry = {"id": self._model.name, "object": "model", "created": 0, "owned_by": "posttrain"}
        return web.json_response({"object": "list", "data": [entry]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer a conversation."""
        return await self._answer(request, parse(ChatBody, await _content(request)))

    async def completion(self, request: web.Request) -> web.StreamResponse:
        """Continue a text."""
        return await self._answer(request, parse(CompletionBody, await _content(request)))

    async def _answer(self, http: web.Request, body: ChatBody | CompletionBody) -> web.StreamResponse:
        # In a thread: pictures take long to decode, and some have to be fetched.
        request, offer = await asyncio.to_thread(request_of, body, self._model, self._access)
        replies = Replies(self._model, isinstance(body, ChatBody), body.has_logprobs, len(request.prompt), offer)
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        answer = Answer(request, self._model.chat.tokenizer, lambda: loop.call_soon_threadsafe(changed.set))
        self._batches.submit(answer)
        try:
            if body.stream:
                return await _stream(http, replies, _states(answer, changed), has_usage=body.has_usage)
            async for state in _states(answer, changed):
                last = state
            return web.json_response(replies.whole(last))
        except _SamplingError as error:
            return web.json_response(openai_replies.error(str(error), is_ours=True), status=500)
        finally:
            answer.is_cancelled = True  # the client may have gone: its row ends


class _SamplingError(Exception):
    """The engine failed."""


async def _content(request: web.Request) -> bytes:
    if request.content_type != "application/json":  # a page in a browser can send other types to any server unasked
        raise RequestError("Content-Type", request.content_type, "accepted: application/json", 415)
    return await request.read()


async def _states(answer: Answer, changed: asyncio.Event) -> AsyncIterator[State]:
    """Yield each new state, the last one included."""
    state = State()
    while state.finish is None:  # of what was yielded: the last state may come while the one before is sent
        await changed.wait()
        changed.clear()
        if answer.error is not None:
            raise _SamplingError(f"sampling failed: {answer.error}") from answer.error
        state = answer.state
        yield state


async def _stream(
    request: web.Request, replies: Replies, states: AsyncIterator[State], *, has_usage: bool
) -> web.StreamResponse:
    """Send what is new as server-sent events."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)

    async def send(data: openai_replies.Json) -> None:
        await response.write(f"data: {json.dumps(data)}\n\n".encode())

    if replies.is_chat:
        await send(replies.role())
    state = State()
    try:
        async for new in states:
            await send(replies.chunk(state, new))
            state = new
    except _SamplingError as error:
        await send(openai_replies.error(str(error), is_ours=True))
        return response
    if has_usage:
        await send(replies.usage(state))
    await response.write(b"data: [DONE]\n\n")
    return response
