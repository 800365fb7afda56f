"""Sandboxes of a run on a running operator: claimed, used, replaced, given back; Agent Sandbox is a stand-in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.builders.cluster import agent_sandbox
from tests.builders.cluster.agent_sandbox_controller import AgentSandboxController
from tests.builders.cluster.api_access import find
from tests.builders.cluster.manifests import eventually, is_established
from tests.builders.cluster.operator_process import OperatorProcess

from ptkube.client import Kube
from ptkube.resources import CRDS, PODS, SANDBOX_CLAIMS, SANDBOX_WARM_POOLS
from pttrainer.sandbox import confinement
from pttrainer.sandbox.agent.agent_pool import AgentPool
from pttrainer.sandbox.pool import Request

WANTED: dict[str, Any] = {
    "algorithm": {"grpo": {"groupSize": 4}},
    "rewards": [{"builtin": "code"}],
    "training": {"steps": 3, "batchSize": 16},
    "sandbox": {"replicas": 2, "warm": 1},
}
PROGRAMS = {"def add(a, b): return a + b": 1.0, "def add(a, b): return 3.5": 0.0}
ROW = {"tests": ["assert add(1, 2) == 3"]}


@pytest.fixture
def controller(control_plane: Any, kube: Kube, namespace: str, tmp_path: Path) -> Iterator[AgentSandboxController]:
    """Agent Sandbox's definitions, and its controller."""
    names = [agent_sandbox.definition(kind)["metadata"]["name"] for kind in agent_sandbox.KINDS]
    if any(find(kube, CRDS, name) for name in names):
        pytest.skip("the cluster has Agent Sandbox itself")
    for kind in agent_sandbox.KINDS:
        kube.create(CRDS, agent_sandbox.definition(kind))
    eventually(lambda: all(is_established(kube.get(CRDS, name)) for name in names))
    (tmp_path / "addresses").mkdir()
    own = Kube.load(str(control_plane.kubeconfig), control_plane.context)
    made = AgentSandboxController(own, namespace, tmp_path / "addresses")
    made.start()
    yield made
    made.stop()
    for name in names:
        kube.delete(CRDS, name)
    eventually(lambda: not any(find(kube, CRDS, name) for name in names))


def condition(jobs: Any, name: str) -> tuple[str, str]:
    """The status and reason of SandboxesReady; empty without that condition."""
    matching = [each for each in jobs.status(name).conditions if each.type == "SandboxesReady"]
    return (matching[0].status, matching[0].reason) if matching else ("", "")


def claims(jobs: Any) -> list[str]:
    return sorted(claim["metadata"]["name"] for claim in jobs.kube.list(SANDBOX_CLAIMS, jobs.namespace).items)


@pytest.mark.skipif(bool(confinement.unsupported_reason()), reason=confinement.unsupported_reason())
def test_programs_run_in_claimed_pods_and_all_goes_with_the_run(
    controller: AgentSandboxController, operator: OperatorProcess, jobs: Any
) -> None:
    jobs.create("code", {"FAKE_HOLD_AT": "2"}, **WANTED)
    jobs.wait(lambda: condition(jobs, "code") == ("True", "SandboxesReady"), shown=lambda: jobs.status("code"))
    first, second = claims(jobs)
    counts = jobs.status("code").sandboxes
    assert (counts.total, counts.ready, counts.created) == (2, 2, 2)
    jobs.wait(lambda: len(controller.addresses()) == 2)
    pool = AgentPool("spec.rewards[code]", {"kind": "code", "timeout": 60.0}, ",".join(controller.addresses()))
    assert pool.loaded == {"takes": "one"}
    replies = pool.call([Request(["", program, ROW], 90.0) for program in PROGRAMS], lambda: None)
    assert [reply.value for reply in replies] == list(PROGRAMS.values())

    jobs.kube.delete(SANDBOX_CLAIMS, first, jobs.namespace)  # somebody else does
    jobs.wait(lambda: claims(jobs) == [second, first[:-1] + "2"], shown=lambda: claims(jobs))
    jobs.wait(lambda: jobs.status("code").sandboxes.created == 3)

    jobs.mark("code")
    jobs.wait_phase("code", "Succeeded")
    jobs.wait(lambda: not claims(jobs), shown=lambda: claims(jobs))
    (warm,) = jobs.kube.list(SANDBOX_WARM_POOLS, jobs.namespace).items
    assert warm["spec"]["replicas"] == 0
    jobs.wait(lambda: not jobs.kube.list(PODS, jobs.namespace, labels="posttrain.dev/sandbox").items)


def test_a_cluster_without_agent_sandbox_runs_the_job_in_processes(operator: OperatorProcess, jobs: Any) -> None:
    jobs.create("plain", **WANTED)
    jobs.wait_phase("plain", "Succeeded")
    assert condition(jobs, "plain") == ("False", "SandboxesNotServed")
