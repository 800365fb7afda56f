"""Code rewards and Python tools in sandboxes of the cluster: what comes back, and what is lost without being wrong."""

import ast
import json
import socket
import sys
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from tests.builders.servers.sandbox_runtime import SandboxRuntime, sandbox

from ptapi.run_directory import SANDBOXES_ENV
from ptapi.spec import Environment, PythonTool, Reward, Tool
from pttrainer.environments.environment import AssistantTurn
from pttrainer.environments.tool_environment import ToolEnvironment
from pttrainer.errors import ConfigError, ServiceLost, UserCodeError
from pttrainer.rewards import Sample
from pttrainer.rewards.runner import Runner
from pttrainer.runtime.reporting.step_faults import Kind
from pttrainer.sandbox import confinement
from pttrainer.sandbox.agent.agent_pool import AgentPool, open_pool
from pttrainer.sandbox.agent.bundle import MODULES, Bundle
from pttrainer.sandbox.pool import Pool, Request

CODE = {"kind": "code", "timeout": 30.0}
ROW = {"tests": ["assert add(1, 2) == 3"]}
RIGHT, WRONG, ENDS = "def add(a, b): return a + b", "def add(a, b): return 3.5", "import os\nos._exit(0)"
TOOL = """
import os
def shout(text: str) -> str:
    '''The text in capital letters.'''
    print("shouting")
    return text.upper() if text else os.environ["MISSING"]
"""
confined = pytest.mark.skipif(bool(confinement.unsupported_reason()), reason=confinement.unsupported_reason())


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[SandboxRuntime]:
    with sandbox(tmp_path) as server:
        yield server


@pytest.fixture
def away() -> Iterator[str]:
    """An address that refuses connections: its port is bound, and nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def pool_of(*addresses: str) -> AgentPool:
    return AgentPool("spec.rewards[code]", CODE, ",".join(addresses))


@confined
def test_programs_are_judged_in_a_sandbox_as_in_child_processes(
    runtime: SandboxRuntime, away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SANDBOXES_ENV, f"{away},{runtime.address}")
    runner = Runner([Reward(builtin="code", timeout_seconds=60.0)])
    scores = runner.score([Sample("", program, ROW) for program in (RIGHT, WRONG, ENDS)])
    assert scores.total.tolist() == [1.0, 0.0, 0.0]
    assert runtime.commands
    assert all(each.startswith("python3 posttrain-") for each in runtime.commands)
    assert not list(runtime.directory.iterdir())  # a bundle deletes itself


def test_a_tool_answers_from_a_sandbox(
    runtime: SandboxRuntime, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(SANDBOXES_ENV, runtime.address)
    spec = Environment(tools=[Tool(python=PythonTool(code=TOOL, function="shout"))], tool_format="hermes")
    tools = ToolEnvironment(spec, None, lambda: None)
    assert tools.schemas[0]["function"]["description"] == "The text in capital letters."
    calls = "".join(
        f"<tool_call>{json.dumps({'name': 'shout', 'arguments': {'text': text}})}</tool_call>" for text in ("hi", "")
    )
    result = tools.step({0: AssistantTurn(text=calls, row={}, left_s=60.0)})[0]
    assert [message["content"] for message in result.messages] == ["HI", "error: raised KeyError: 'MISSING' (line 6)"]
    assert not result.is_lost
    assert "shouting" in capfd.readouterr().err
    runtime.broken = b"{}"
    assert tools.step({0: AssistantTurn(text=calls, row={}, left_s=60.0)})[0].is_lost


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"no JSON", "/execute is answered with no JSON"),
        (b'{"stdout": "", "stderr": "Killed", "exit_code": 137}', "python3 ended with 137: Killed"),
        (b'{"stdout": "{\\"replies\\": []}", "stderr": "", "exit_code": 0}', "python3 ended with 0: no answer"),
    ],
)
def test_an_answer_that_is_none_is_lost_and_not_a_reward_of_0(runtime: SandboxRuntime, answer: bytes, why: str) -> None:
    runtime.broken = answer
    (reply,) = pool_of(runtime.address).call([Request(["", RIGHT, ROW], 1.0)], lambda: None)
    assert reply.is_lost
    assert reply.stopped
    assert reply.value is None
    assert reply.error == f"lost with its sandbox: {runtime.address}: {why}"


@confined
def test_a_lost_sandbox_costs_no_reward_while_another_one_answers(runtime: SandboxRuntime, away: str) -> None:
    replies = pool_of(away, runtime.address).call([Request(["", RIGHT, ROW], 30.0)] * 2, lambda: None)
    assert [reply.value for reply in replies] == [1.0, 1.0]


def test_lost_rewards_are_left_out_and_blamed_on_the_service(
    runtime: SandboxRuntime, away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SANDBOXES_ENV, away)
    monkeypatch.setattr(AgentPool, "loaded", {"takes": "one"})
    scores = Runner([Reward(builtin="code")]).score([Sample("", RIGHT, ROW)] * 3)
    assert np.isnan(scores.total).all()
    assert scores.failures["code"].kind is Kind.SERVICE
    assert "lost with its sandbox" in scores.failures["code"].error


def test_a_wrong_file_of_the_user_ends_the_run_with_its_message(runtime: SandboxRuntime, tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text("def other(): pass")
    source = {"kind": "tool", "path": str(file), "function": "shout", "packages": None}
    with pytest.raises(UserCodeError, match=r"spec\.environment\.tools\[0\]: .*tools\.py: no function 'shout'"):
        _ = AgentPool("spec.environment.tools[0]", source, runtime.address).loaded


def test_no_sandbox_at_the_start_names_what_to_look_at(away: str) -> None:
    with pytest.raises(ServiceLost, match=r"no sandbox answered within 0 s: .*refused.*kubectl get sandboxclaims"):
        _ = AgentPool("spec.rewards[code]", CODE, away, start_s=0.0).loaded
    with pytest.raises(ConfigError, match="accepted: host:port"):
        AgentPool("spec.rewards[code]", CODE, "sandboxes")


def test_without_sandboxes_child_processes_answer() -> None:
    pool = open_pool("spec.rewards[code]", CODE, "")
    assert isinstance(pool, Pool)
    pool.close()


def test_a_bundle_has_every_module_that_it_imports() -> None:
    """In an interpreter without ours, a module that is missing would end each request."""
    with zipfile.ZipFile(BytesIO(Bundle("f", CODE).of([]))) as archive:
        assert {*MODULES, "__main__.py", "task.json"} == set(archive.namelist())
        texts = {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}
    missing = {
        f"{name}: {module}"
        for name, text in texts.items()
        for node in ast.walk(ast.parse(text))
        for module in _imported(node)
        if module.split(".")[0] not in sys.stdlib_module_names
        and not {f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py"} & {*texts}
    }
    assert not missing


def _imported(node: ast.AST) -> list[str]:
    """Return the modules that a statement imports; names of a package count as its modules."""
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    if not isinstance(node, ast.ImportFrom) or node.module is None:
        return []
    submodules = [f"{node.module}.{each.name}" for each in node.names if each.name.islower()]
    is_package = f"{node.module.replace('.', '/')}/__init__.py" in MODULES
    return [node.module, *(submodules if is_package else [])]
