"""`ptctl mcp`, with the protocol's own client: which tools there are, what they run, and who may ask."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from starlette.applications import Starlette
from starlette.testclient import TestClient

from ptctl.jobs.agent_server import WithToken
from ptctl.jobs.agent_tools import program, server
from ptctl.ui.app import Target

WRITES = {"create_job", "suspend_job"}


class Recorded:
    """Notes the commands that tools run."""

    def __init__(self) -> None:
        self.commands: list[tuple[list[str], str]] = []

    def __call__(self, words: Sequence[str], text: str) -> str:
        self.commands.append((list(words), text))
        return "done"


def call(run: Any, name: str, arguments: dict[str, Any], *, allow_writes: bool = False) -> Any:
    async def ask() -> Any:
        async with Client(server(run, allow_writes=allow_writes)) as client:
            return await client.call_tool(name, arguments)

    return asyncio.run(ask())


@pytest.mark.parametrize("allow_writes", [False, True])
def test_writing_tools_are_there_only_where_they_are_switched_on(allow_writes: bool) -> None:
    async def names() -> dict[str, Any]:
        async with Client(server(Recorded(), allow_writes=allow_writes)) as client:
            return {tool.name: tool.annotations for tool in (await client.list_tools()).tools}

    tools = asyncio.run(names())
    assert set(tools) & WRITES == (WRITES if allow_writes else set())
    assert all(tools[name].read_only_hint is (name not in WRITES) for name in tools)
    assert {"list_jobs", "describe_job", "job_logs", "plan_job", "doctor"} <= set(tools)


def test_a_name_is_never_a_flag_and_a_job_comes_by_standard_input() -> None:
    run = Recorded()
    call(run, "job_logs", {"name": "llama", "lines": 5})
    call(run, "create_job", {"job": "kind: PostTrainJob"}, allow_writes=True)
    assert run.commands == [
        (["workload", "logs", "--tail", "5", "--", "llama"], ""),
        (["workload", "create", "-f", "-"], "kind: PostTrainJob"),
    ]
    refused = call(run, "describe_job", {"name": "--kubeconfig=/etc/other"})
    assert refused.is_error
    assert len(run.commands) == 2


def test_an_agent_checks_a_job_over_standard_input_and_output(tmp_path: Path) -> None:
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "ptctl", "mcp"], env={**os.environ, "KUBECONFIG": str(tmp_path / "none")}
    )

    async def ask() -> tuple[Any, Any]:
        async with Client(parameters) as client:
            wrong = await client.call_tool("validate_job", {"job": json.dumps({"kind": "PostTrainJob", "spec": {}})})
            return wrong, await client.call_tool("list_jobs", {})

    wrong, unreachable = asyncio.run(ask())
    assert wrong.is_error
    assert "spec.model: (missing): is required" in wrong.content[0].text
    assert unreachable.is_error
    assert "Traceback" not in unreachable.content[0].text


def test_a_command_of_the_program_gets_the_target(tmp_path: Path) -> None:
    target = Target(namespace="team-a", kubeconfig=str(tmp_path / "none"))
    result = call(program(target), "list_jobs", {})
    assert result.is_error
    assert str(tmp_path / "none") in result.content[0].text


def test_http_without_the_token_is_refused() -> None:
    tools = server(Recorded(), allow_writes=False)
    inner: Starlette = tools.streamable_http_app()
    with TestClient(WithToken(inner, "secret"), base_url="http://127.0.0.1:8012") as client:
        assert client.post("/mcp", json={}).status_code == 401
        assert client.post("/mcp", json={}, headers={"Authorization": "Bearer other"}).status_code == 401
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        accepted = {"Authorization": "Bearer secret", "Accept": "application/json, text/event-stream"}
        assert client.post("/mcp", json=ping, headers=accepted).status_code != 401
