"""A server of OpenEnv's protocol, as openenv-core 0.3 answers: it echoes, fails and ends on request."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import WSMsgType, web


class EchoServer:
    """Sessions that are open, and all messages, as they came."""

    def __init__(self, sessions: int) -> None:
        self.most, self.open = sessions, 0
        self.messages: list[dict[str, Any]] = []

    async def session(self, request: web.Request) -> web.WebSocketResponse:
        """Answer one session."""
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.open >= self.most:
            await socket.send_json(_error("CAPACITY_REACHED", f"{self.most} of {self.most} sessions"))
            return socket
        self.open += 1
        try:
            async for each in socket:
                if each.type != WSMsgType.TEXT or (message := each.json())["type"] == "close":
                    break
                self.messages.append(message)
                await socket.send_json(await self._answer(message, socket))
        finally:
            self.open -= 1
        return socket

    async def _answer(self, message: dict[str, Any], socket: web.WebSocketResponse) -> dict[str, Any]:
        data = message["data"]
        if message["type"] == "reset":
            return _observation(f"ready {data['seed']}", None)
        text = data.get("message")
        if not isinstance(text, str):
            return _error("VALIDATION_ERROR", "message: a text is required")
        if text == "crash":
            return _error("EXECUTION_ERROR", "the game has crashed")
        if text == "hang":
            await asyncio.sleep(60)
        if text == "leave":
            await socket.close()
        return _observation(text, len(text) * 0.5, done=text == "end")


def _observation(text: str, reward: float | None, *, done: bool = False) -> dict[str, Any]:
    data = {"observation": {"echoed_message": text, "length": len(text)}, "reward": reward, "done": done}
    return {"type": "observation", "data": data}


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code}}


@contextmanager
def serving(sessions: int = 64) -> Iterator[tuple[str, EchoServer]]:
    """The server's URL and state, while it runs in a thread of its own."""
    server, started = EchoServer(sessions), threading.Event()
    urls: list[str] = []
    ends: list[Callable[[], object]] = []

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/ws", server.session)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        urls.append(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}")  # type: ignore[attr-defined]
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        ends.append(lambda: loop.call_soon_threadsafe(over.set))
        started.set()
        await over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield urls[0], server
    finally:
        ends[0]()
        thread.join(30)
