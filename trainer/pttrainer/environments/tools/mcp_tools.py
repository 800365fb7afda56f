"""The tools of a job's MCP servers: read once, offered to the model under their own names, called side by side.

What the tool answers, an error too, is read by the model. A server that does not answer, or not in time, or at too
great length, is a failure of the episode, which has no reward then: it is not the policy's.
"""

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from ptapi.spec import McpServer
from pttrainer.environments.tool import schema
from pttrainer.environments.tools.mcp_client import ServerLost, Session, WrongCall
from pttrainer.environments.tools.mcp_replicas import McpReplicas
from pttrainer.errors import ConfigError, ServiceLost
from pttrainer.runtime.services.addresses import addresses
from pttrainer.sandbox.pool import WAKE_S, Alive, Pool, Request, default_children

ATTEMPTS, DELAY_S = 4, 1.0
"""How often a server is tried when the run begins, and the time between."""
PATH = "/mcp"
"""Where a service speaks MCP, if the job does not say."""


class McpCall(NamedTuple):
    """A call, and how long it may take."""

    tool: str
    arguments: Mapping[str, Any]
    limit_s: float
    episode: int = 0


class McpResult(NamedTuple):
    """A text or an error that the model reads, or, with `lost`, why the episode fails."""

    text: str = ""
    error: str = ""
    lost: str = ""
    seconds: float = 0.0


class McpTools:
    """The tools of servers, by name; alive: called while waiting.

    Raises ServiceLost if a server does not answer, ConfigError if it lacks a tool or two tools have one name,
    UserCodeError if a command makes no server. packages: the directory of the job's own.
    """

    def __init__(
        self, servers: Sequence[McpServer], alive: Alive, attempts: int = ATTEMPTS, packages: str | None = None
    ) -> None:
        self._alive, self._packages = alive, packages
        self._sessions: dict[str, McpReplicas] = {}
        self._pools: dict[str, tuple[Pool, McpServer]] = {}
        self._open: list[McpReplicas | Pool] = []
        self.schemas: dict[str, Mapping[str, Any]] = {}
        self._concurrency: dict[str, int] = {}
        try:
            for index, server in enumerate(servers):
                self._add(f"spec.environment.mcp[{index}]", server, attempts)
        except BaseException:
            self.close()
            raise

    def call(self, calls: Sequence[McpCall]) -> list[McpResult]:
        """Return a result for each call; all of one tool."""
        if not calls:
            return []
        if calls[0].tool in self._pools:
            return self._call_processes(calls)
        with ThreadPoolExecutor(self._concurrency[calls[0].tool], "mcp") as threads:
            results: list[Future[McpResult]] = [threads.submit(self._call, call) for call in calls]
            while wait(results, WAKE_S).not_done:
                self._alive()  # each has a limit, so the wait is no hang
        return [result.result() for result in results]

    def begin(self) -> None:
        """Begin new episodes; all earlier ones are over."""
        for sessions in self._sessions.values():
            sessions.begin()

    def close(self) -> None:
        """End the sessions and the processes."""
        for session in self._open:
            session.close()

    def _call(self, call: McpCall) -> McpResult:
        began = time.monotonic()
        text, error, lost = "", "", ""
        try:
            text, is_error = self._sessions[call.tool].call(call.tool, call.arguments, call.limit_s, call.episode)
            if is_error:
                text, error = "", text or "the tool failed"
        except WrongCall as wrong:
            error = str(wrong) or "the server refuses the call"
        except ServerLost as gone:
            lost = str(gone)
        return McpResult(text, error, lost, time.monotonic() - began)

    def _call_processes(self, calls: Sequence[McpCall]) -> list[McpResult]:
        """Call a server that a command makes: an episode's calls go to one process."""
        pool, server = self._pools[calls[0].tool]
        requests = [
            Request(
                [call.tool, dict(call.arguments)], min(call.limit_s, server.timeout_seconds), call.episode % len(pool)
            )
            for call in calls
        ]
        return [
            McpResult(lost=f"{server.name}: {reply.error}", seconds=reply.seconds)
            if reply.value is None
            else McpResult(reply.value["text"], reply.value["error"], seconds=reply.seconds)
            for reply in pool.call(requests, self._alive)
        ]

    def _add(self, field: str, server: McpServer, attempts: int) -> None:
        if server.command is not None:
            source = {
                "kind": "mcp",
                "command": server.command,
                "max_bytes": server.max_result_bytes,
                "packages": self._packages,
                "python_path": os.environ.get("PYTHONPATH", ""),  # children have another one
            }
            pool = Pool(f"{field}.command", source, min(default_children(), server.concurrency))
            self._open.append(pool)
            self._pools |= dict.fromkeys(self._offered(field, server, pool.loaded["tools"]), (pool, server))
            return
        key = None if server.api_key_env is None else os.environ.get(server.api_key_env)
        if server.api_key_env is not None and not key:
            raise ConfigError(f"{field}.apiKeyEnv: {server.api_key_env}: is not set; hint: set it in spec.env")
        sessions = McpReplicas(
            _urls(field, server), lambda url: Session(url, server.timeout_seconds, server.max_result_bytes, key)
        )
        origin = "url" if server.service is None else "service"
        described = self._described(f"{field}.{origin}", sessions, attempts)
        self._open.append(sessions)
        for name in self._offered(field, server, described):
            self._sessions[name], self._concurrency[name] = sessions, server.concurrency

    def _offered(self, field: str, server: McpServer, described: Sequence[dict[str, Any]]) -> list[str]:
        """Return the names of a server's tools that the model is told of, and keep their schemas."""
        tools = {tool["name"]: tool for tool in described}
        missing = [name for name in server.tools if name not in tools]
        if missing:
            raise ConfigError(
                f"{field}.tools: {missing[0]!r}: {server.name} has no such tool; accepted: {', '.join(sorted(tools))}"
            )
        for name in server.tools or sorted(tools):
            if name in self.schemas:
                raise ConfigError(
                    f"{field}: {server.name}: {name!r}: two tools have this name; hint: name those you want in tools"
                )
            self.schemas[name] = schema_of(tools[name])
        return server.tools or sorted(tools)

    def _described(self, field: str, sessions: McpReplicas, attempts: int) -> list[dict[str, Any]]:
        for attempt in range(attempts):
            try:
                return sessions.tools()
            except (ServerLost, WrongCall) as error:
                if attempt + 1 == attempts:
                    raise ServiceLost(
                        f"{field}: {error} ({attempts} tries); hint: check that the server runs and speaks MCP's "
                        "streamable HTTP at this path, /mcp with most"
                    ) from error
                self._alive()
                time.sleep(DELAY_S)
        raise AssertionError("the last try returned")


def _urls(field: str, server: McpServer) -> list[str]:
    """Return where a server listens, or its replicas do. Raises ConfigError."""
    if server.service is not None:
        return [f"{url}{server.path or PATH}" for url in addresses(server.service, f"{field}.service")]
    assert server.url is not None  # one of the two is given
    return [server.url]


def schema_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's description in the form of chat templates."""
    given = tool.get("inputSchema")
    parameters = given if isinstance(given, dict) else {}
    properties = parameters.get("properties")
    made = schema(tool["name"], str(tool.get("description") or ""), properties if isinstance(properties, dict) else {})
    required = parameters.get("required")
    made["function"]["parameters"] |= {name: value for name, value in parameters.items() if name == "$defs"}
    made["function"]["parameters"]["required"] = required if isinstance(required, list) else []
    return made
