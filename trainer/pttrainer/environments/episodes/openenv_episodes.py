"""Episodes on an OpenEnv server or its replicas, one session each: its WebSocket protocol (`/ws`) of openenv-core 0.3.

    reset, step {type, data}   →   observation {observation, reward, done}, or error {message, code}

The model's turn is the text of one field of the action (`actionField`), or the last JSON object in it is the action. An
action that the server calls invalid is the policy's mistake: the model is told, and the turn is spent. Anything else
that goes wrong (no connection, no room for a session, an error of the environment, a late answer) is a failure of the
episode, which then has no reward; all but an error of the environment's own is a lost service. A server that restarts
is tried again before an episode begins, never within one. An episode's session is with the replica that had the fewest
here; one that is gone is left out for a while.

Left out: plain HTTP, whose server keeps no session; the tools of MCP environments.
"""

import asyncio
import json
import os
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from pttrainer.environments.episodes.python_episodes import Episodes, seed_of, shown
from pttrainer.runtime.http_client import CONNECT_S
from pttrainer.runtime.services.replicas import Replicas
from pttrainer.sandbox.handlers import Handler, Source
from pttrainer.sandbox.user_code import RewardCodeError, ServerGone, number

ATTEMPTS, DELAY_S = 4, 1.0
"""Connections that are tried before an episode fails, and the time between them."""
INVALID = "VALIDATION_ERROR"
"""The server's word for an action that is none."""
FAILED = ("EXECUTION_ERROR", "FACTORY_ERROR")
"""Its words for an exception of the environment."""
_LONGEST_MESSAGE = 300


class World:
    """One session. Raises RewardCodeError if the environment fails, ServerGone if the server does not answer."""

    def __init__(self, source: Source, replicas: Replicas) -> None:
        self._source, self._replicas = source, replicas
        self._replica: int | None = None
        self._url = ", ".join(replicas.urls)
        self._loop = asyncio.Runner()
        self._client: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    def reset(self, row: Mapping[str, Any]) -> str:
        """Begin an episode; return what the model reads first."""
        text, _, _ = self._read(self._loop.run(self._ask("reset", {"seed": seed_of(row)})))
        return text

    def step(self, text: str) -> tuple[str, float, bool]:
        """Return observation, reward, and whether the episode is over."""
        action = self._action(text)
        if action is None:
            return "no action; accepted: a JSON object", 0.0, False
        answer = self._loop.run(self._ask("step", action))
        if answer["type"] == "error":
            return f"no action; the environment says: {_message(answer)}", 0.0, False
        return self._read(answer)

    def close(self) -> None:
        """End the session."""
        self._release()
        self._loop.run(self._disconnect())
        self._loop.close()

    def _action(self, text: str) -> dict[str, Any] | None:
        field = self._source["action_field"]
        return last_object(text) if field is None else {field: text}

    def _read(self, answer: Mapping[str, Any]) -> tuple[str, float, bool]:
        data = answer["data"]
        observation, field = data.get("observation", {}), self._source["observation_field"]
        if field is not None and field not in observation:
            raise RewardCodeError(f"observation has no field {field!r}; it has: {', '.join(observation)}")
        text = shown(observation if field is None else observation[field])
        reward = data.get("reward")  # null where the environment judges later
        return text, 0.0 if reward is None else number(float(reward)), bool(data.get("done"))

    async def _ask(self, verb: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and return the answer: an observation, or an error about an action."""
        limit_s = self._source["timeout_s"]
        try:
            async with asyncio.timeout(limit_s):
                if self._socket is None:
                    self._socket = await self._connected()
                await self._socket.send_json({"type": verb, "data": data})
                answer: Any = await self._socket.receive_json()
        except TimeoutError as error:
            raise ServerGone(f"{self._url}: no answer to {verb} within {limit_s:g} s") from error
        except (aiohttp.ClientError, OSError, TypeError, ValueError) as error:
            if self._replica is not None:
                self._replicas.lost(self._replica)
            raise ServerGone(f"{self._url}: connection lost at {verb}: {error}") from error
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
            raise ServerGone(f"{self._url}: {verb} is answered with {str(answer)[:_LONGEST_MESSAGE]}")
        is_of_action = verb == "step" and answer["data"].get("code") == INVALID
        if answer.get("type") != "observation" and not is_of_action:
            is_own = answer["data"].get("code") in FAILED
            raise (RewardCodeError if is_own else ServerGone)(f"{self._url}: {verb}: {_message(answer)}")
        return answer

    async def _connected(self) -> aiohttp.ClientWebSocketResponse:
        self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_S))
        others = len(self._replicas.urls) - 1
        for attempt in range(ATTEMPTS + others):
            self._replica = self._replicas.take(os.getpid())  # children do not all begin with the same replica
            self._url = self._replicas.urls[self._replica]
            try:
                socket = await self._client.ws_connect(f"{self._url}/ws")
                self._replicas.answered(self._replica)
                return socket
            except aiohttp.ClientError:
                self._replicas.lost(self._replica)
                self._release()
                if attempt + 1 == ATTEMPTS + others:
                    raise
                await asyncio.sleep(DELAY_S if attempt >= others else 0.0)
        raise AssertionError

    def _release(self) -> None:
        """Note that the episode needs its replica no more."""
        if self._replica is not None:
            self._replicas.release(self._replica)
            self._replica = None

    async def _disconnect(self) -> None:
        if self._socket is not None and not self._socket.closed:
            await self._socket.send_json({"type": "close"})
            await self._socket.close()
        if self._client is not None:
            await self._client.close()


def handler(source: Source) -> Handler:
    """Return the sandbox's handler. The server is first asked when an episode begins."""
    replicas = Replicas(source["urls"])
    return Handler(Episodes(lambda: World(source, replicas)).answer, details={"role": "user", "schemas": []})


def last_object(text: str) -> dict[str, Any] | None:
    """Return the last JSON object in a text that is not inside another one; None if there is none."""
    decoder, begin, last = json.JSONDecoder(), text.find("{"), None
    until = time.monotonic() + 1.0  # braces without end make this quadratic
    while begin >= 0 and time.monotonic() < until:
        try:
            last, end = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            end = begin + 1
        begin = text.find("{", end)
    return last


def _message(answer: Mapping[str, Any]) -> str:
    data = answer["data"]
    code = f"{data['code']}: " if "code" in data else ""
    return f"{code}{data.get('message', data)}"[:_LONGEST_MESSAGE]
