"""MCP servers as tools: a real server in a process of its own, and what is the policy's fault and what the server's."""

import http.client
import json
import urllib.error
from collections.abc import Iterator
from email.message import Message
from typing import Any

import pytest
from tests.builders.servers import mcp_tools
from tests.unit.pttrainer.environments.test_environments import hermes, read, step

from ptapi.run_directory import SERVICES_ENV
from ptapi.spec import Environment as EnvironmentSpec
from ptapi.spec import McpServer
from pttrainer.environments.tool_environment import ToolEnvironment
from pttrainer.environments.tools import mcp_replicas
from pttrainer.environments.tools import mcp_tools as mcp_tools_module
from pttrainer.environments.tools.mcp_client import ServerLost, text_of
from pttrainer.environments.tools.mcp_tools import McpTools, schema_of
from pttrainer.errors import ConfigError, ServiceLost


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with mcp_tools.serving() as served:
        yield served


def environment(url: str, *builtins: str, **fields: Any) -> ToolEnvironment:
    tools = [{"builtin": name} for name in builtins]
    spec = EnvironmentSpec.model_validate({"tools": tools, "mcp": [{"name": "tests", "url": url, **fields}]})
    return ToolEnvironment(spec, "<tool_call>", lambda: None)


@pytest.fixture(scope="module")
def tools(url: str) -> Iterator[ToolEnvironment]:
    made = environment(url, "calculator", timeoutSeconds=60.0, maxResultBytes=4096)
    yield made
    made.close()


def test_the_model_is_told_of_the_servers_tools_beside_the_builtin_ones(tools: ToolEnvironment) -> None:
    functions = {schema["function"]["name"]: schema["function"] for schema in tools.schemas}
    assert set(functions) == {"calculator", "add", "repeat", "refuse", "hang", "die"}
    assert functions["add"]["description"] == "Add two numbers."
    assert functions["add"]["parameters"]["required"] == ["a", "b"]
    assert functions["repeat"]["parameters"]["properties"]["times"]["type"] == "integer"
    assert functions["repeat"]["parameters"]["required"] == ["text"]


def test_calls_of_many_episodes_are_answered_each_with_its_own(tools: ToolEnvironment) -> None:
    replies = step(tools, *[hermes("add", a=n, b=1) + hermes("calculator", expression=f"{n}*2") for n in range(8)])
    assert [read(reply) for reply in replies] == [[str(n + 1), str(n * 2)] for n in range(8)]
    assert all((reply.error, reply.calls, reply.failed, reply.is_lost) == ("", 2, 0, False) for reply in replies)


def test_what_a_tool_refuses_is_read_by_the_model_and_no_failure(tools: ToolEnvironment) -> None:
    replies = step(tools, hermes("refuse", why="not today"), hermes("add", a="x", b=1), hermes("add", a=1))
    assert "not today" in read(replies[0])[0]
    assert read(replies[1]) == ["error: argument 'a' is a str; accepted: integer"]
    assert read(replies[2]) == ["error: missing argument 'b'; accepted: a, b"]
    assert all((reply.error, reply.failed, reply.done) == ("", 1, False) for reply in replies)


def test_an_answer_that_is_too_long_or_too_late_fails_the_episode_and_no_other(tools: ToolEnvironment) -> None:
    long, fine = step(tools, hermes("repeat", text="word", times=5000), hermes("repeat", text="hi", times=2))
    assert "the answer has more than 4096 bytes" in long.error
    assert (long.is_lost, long.done) == (True, True)
    assert read(fine) == ["hihi"]
    late = step(tools, hermes("hang"), left_s=0.3)[0]
    assert late.is_lost
    assert "imed out" in late.error or "took too long" in late.error


def test_a_server_that_dies_is_lost_to_later_episodes_too() -> None:
    with mcp_tools.serving() as url:
        tools = environment(url, timeoutSeconds=60.0)
        try:
            assert read(step(tools, hermes("add", a=1, b=2))[0]) == ["3"]
            for call in (hermes("die"), hermes("add", a=1, b=2)):
                assert step(tools, call)[0].is_lost
        finally:
            tools.close()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": ["substract"]}, r"mcp\[0\].tools: 'substract': tests has no such tool; accepted: add, die, hang"),
        ({"apiKeyEnv": "NO_SUCH_KEY_HERE"}, r"mcp\[0\].apiKeyEnv: NO_SUCH_KEY_HERE: is not set"),
    ],
)
def test_a_tool_that_the_server_lacks_and_a_key_that_is_not_set_are_named(
    url: str, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        environment(url, **fields)


def test_two_tools_of_one_name_are_refused(url: str) -> None:
    servers = [McpServer(name=name, url=url, tools=["add"]) for name in ("a", "b")]
    with pytest.raises(ConfigError, match=r"mcp\[1\]: b: 'add': two tools have this name"):
        McpTools(servers, lambda: None)


def test_a_server_that_is_not_there_is_a_lost_service() -> None:
    server = McpServer(name="a", url="http://127.0.0.1:9/mcp")
    with pytest.raises(ServiceLost, match=r"mcp\[0\].url: http://127.0.0.1:9/mcp: .* \(1 tries\); hint: check that"):
        McpTools([server], lambda: None, attempts=1)


def test_a_path_that_speaks_no_mcp_is_named(url: str) -> None:
    with pytest.raises(ServiceLost, match=r"/other: 404"):
        McpTools([McpServer(name="a", url=url.replace("/mcp", "/other"))], lambda: None, attempts=1)


def test_what_is_no_text_is_named_and_a_schema_may_say_little() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "resource", "resource": {"text": "b"}}]
    assert text_of({"content": parts}) == "a\n(image that cannot be shown)\nb"
    assert text_of({"structuredContent": {"n": 1}}) == '{"n": 1}'
    assert schema_of({"name": "t"})["function"]["parameters"] == {"type": "object", "properties": {}, "required": []}


# A server that is a service of the job


def of_service(urls: list[str], monkeypatch: pytest.MonkeyPatch) -> ToolEnvironment:
    monkeypatch.setenv(SERVICES_ENV, json.dumps({"search": [url.removesuffix("/mcp") for url in urls]}))
    spec = {"mcp": [{"name": "tests", "service": "search", "path": "/mcp", "timeoutSeconds": 60.0}]}
    return ToolEnvironment(EnvironmentSpec.model_validate(spec), "<tool_call>", lambda: None)


def test_episodes_of_a_replica_that_dies_are_lost_and_later_ones_go_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with mcp_tools.serving() as first, mcp_tools.serving() as second:
        made = of_service([first, second], monkeypatch)
        try:
            made.reset({n: {} for n in range(4)})
            calls = [hermes("add", a=n, b=1) for n in range(4)]
            assert [read(reply) for reply in step(made, *calls)] == [[str(n + 1)] for n in range(4)]
            assert step(made, hermes("die"))[0].is_lost
            homes = made._mcp._sessions["add"]._homes
            lost = [reply.is_lost for reply in step(made, *calls)]
            assert lost[0] is False  # its replica died, and a call of a new number goes to the other one
            assert sorted(lost[1:]) == [False, False, True]
            made.reset({n: {} for n in range(4)})
            assert homes == {}
            assert [read(reply) for reply in step(made, *calls)] == [[str(n + 1)] for n in range(4)]
            assert len(set(homes.values())) == 1
        finally:
            made.close()


def test_a_service_that_does_not_speak_mcp_there_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tools_module, "DELAY_S", 0.01)
    with pytest.raises(ServiceLost, match=r"mcp\[0\].service: http://\S+/mcp/mcp: 404"):
        of_service([f"{url}/mcp"], monkeypatch)


@pytest.mark.parametrize(
    ("cause", "is_gone"),
    [
        (ConnectionRefusedError(111, "refused"), True),
        (TimeoutError(110, "Connection timed out"), True),  # the kernel's: the machine is away
        (TimeoutError("timed out"), False),  # a limit's
        (http.client.IncompleteRead(b""), True),
        (urllib.error.HTTPError("http://a", 500, "failed", Message(), None), False),
        (ValueError("the answer has more than 9 bytes"), False),
    ],
)
def test_a_replica_is_left_out_if_nothing_answers_there_and_not_for_what_it_answers(
    cause: Exception, *, is_gone: bool
) -> None:
    lost = ServerLost("")
    lost.__cause__ = cause
    assert mcp_replicas._is_gone(lost) is is_gone
