"""MCP servers that a command starts: what the model reads, what ends an episode, and that no process is left behind."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.pttrainer.environments.test_environments import hermes, read, step

from ptapi.spec import Environment as EnvironmentSpec
from pttrainer.environments.tool_environment import ToolEnvironment
from pttrainer.errors import ConfigError, UserCodeError

COMMAND = [sys.executable, "-m", "tests.builders.servers.mcp_stdio"]


def environment(command: list[str], packages: str | None = None, **fields: Any) -> ToolEnvironment:
    server = {
        "name": "own",
        "command": command,
        "concurrency": 1,
        "maxResultBytes": 4096,
        "timeoutSeconds": 60,
        **fields,
    }
    spec = EnvironmentSpec.model_validate({"tools": [{"builtin": "calculator"}], "mcp": [server]})
    return ToolEnvironment(spec, "<tool_call>", lambda: None, packages)


@pytest.fixture(scope="module")
def tools() -> Iterator[ToolEnvironment]:
    made = environment(COMMAND)
    yield made
    made.close()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def has_ended(pid: int) -> bool:
    until = time.monotonic() + 120
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not is_running(pid)


def test_the_tools_of_all_pages_are_told_and_answer_beside_builtin_ones(tools: ToolEnvironment) -> None:
    names = [schema["function"]["name"] for schema in tools.schemas]
    assert names == ["calculator", "count", "end", "hang", "long", "pid", "refuse", "say", "wrong"]
    replies = step(tools, hermes("say", text="hi") + hermes("calculator", expression="2*3"), hermes("say"))
    assert [read(reply) for reply in replies] == [["hi", "6"], ["error: missing argument 'text'; accepted: text"]]
    assert [(reply.error, reply.failed) for reply in replies] == [("", 0), ("", 1)]


def test_what_the_tool_or_the_server_refuses_is_read_by_the_model(tools: ToolEnvironment) -> None:
    replies = step(tools, hermes("refuse"), hermes("wrong"))
    assert [read(reply) for reply in replies] == [["error: not today"], ["error: not so"]]
    assert all((reply.error, reply.failed) == ("", 1) for reply in replies)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (hermes("long"), "tools/call: the answer has more than 4096 bytes"),
        (hermes("end"), "tools/call: the server ended"),
    ],
)
def test_a_server_that_ends_or_says_too_much_is_lost_and_made_again(
    tools: ToolEnvironment, call: str, words: str
) -> None:
    step(tools, hermes("count"))
    lost = step(tools, call)[0]
    assert words in lost.error
    assert (lost.is_lost, lost.done) == (True, True)
    assert read(step(tools, hermes("count"))[0]) == ["1"]


def test_a_late_server_is_killed_and_leaves_no_process(tools: ToolEnvironment) -> None:
    pid = int(read(step(tools, hermes("pid"))[0])[0])
    late = step(tools, hermes("hang"), left_s=0.3)[0]
    assert "own: no answer within 0.3 s" in late.error
    assert late.is_lost
    assert has_ended(pid)
    assert int(read(step(tools, hermes("pid"))[0])[0]) != pid


def test_closing_ends_the_server(tmp_path: Path) -> None:
    (tmp_path / "own_server.py").write_text("from tests.builders.servers.mcp_stdio import main\nmain()\n")
    made = environment([sys.executable, "-m", "own_server"], str(tmp_path), tools=["pid"])
    try:
        pid = int(read(step(made, hermes("pid"))[0])[0])
        assert is_running(pid)
    finally:
        made.close()
    assert has_ended(pid)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["no-such-program"], r"mcp\[0\].command: no-such-program: cannot be started: .*No such file"),
        ([sys.executable, "-c", "import sys; sys.exit(2)"], "initialize: the server ended"),
        ([sys.executable, "-c", 'input(); print(\'{"id": 1, "result": 5}\')'], "initialize: no result"),
    ],
)
def test_a_command_that_makes_no_server_is_refused_before_the_first_step(command: list[str], words: str) -> None:
    with pytest.raises(UserCodeError, match=words):
        environment(command)


def test_a_tool_that_the_server_lacks_is_named() -> None:
    with pytest.raises(ConfigError, match=r"mcp\[0\].tools: 'add': own has no such tool; accepted: count, end"):
        environment(COMMAND, tools=["add"])
