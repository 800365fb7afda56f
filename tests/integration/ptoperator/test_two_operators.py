"""Two replicas of the operator: one works; when it is killed the other goes on, and never do both write."""

import time
from pathlib import Path
from typing import Any

from tests.builders.cluster.operator_process import OperatorProcess, WriteProxy

from ptkube.resources import LEASES
from ptoperator.controller.leader_election import LEASE

Writes = list[tuple[float, str]]


def replica(
    name: str, control_plane: Any, jobs: Any, folder: Path, writes: Writes
) -> tuple[WriteProxy, OperatorProcess]:
    """An operator whose writes are noted, but for those of the lease itself."""

    def note(moment: str, what: str) -> bool:
        if "/leases" not in what:
            writes.append((time.monotonic(), name))
        return True

    (folder / name).mkdir(parents=True)
    proxy = WriteProxy(control_plane.kubeconfig, folder / name, note)
    proxy.__enter__()
    env = {"POSTTRAIN_LEADER_NAMESPACE": jobs.namespace, "POD_ID": name}
    return proxy, OperatorProcess(proxy.kubeconfig, folder / name, jobs.namespace, env=env)


def holder(jobs: Any) -> str:
    leases = jobs.kube.list(LEASES, jobs.namespace).items
    return str(leases[0]["spec"].get("holderIdentity") or "") if leases else ""


def test_a_killed_replica_is_followed_within_twenty_seconds_and_never_do_two_write(
    control_plane: Any, jobs: Any, tmp_path: Path
) -> None:
    tries = (handed_over(f"handed-over-{number}", control_plane, jobs, tmp_path) for number in range(4))
    assert any(seconds < 20 for seconds in tries)  # again: the machine may have been busy


def handed_over(job: str, control_plane: Any, jobs: Any, tmp_path: Path) -> float:
    """Kills the replica that works on the job; seconds until the other one writes."""
    writes: Writes = []
    replicas = {name: replica(name, control_plane, jobs, tmp_path / job, writes) for name in ("a", "b")}
    try:
        replicas["a"][1].start()
        jobs.wait(lambda: holder(jobs) == "a")
        replicas["b"][1].start()
        transitions = jobs.kube.get(LEASES, LEASE, jobs.namespace)["spec"]["leaseTransitions"]
        jobs.create(job, {"FAKE_WAIT": "yes"})
        jobs.wait_phase(job, "Running")
        assert jobs.kube.get(LEASES, LEASE, jobs.namespace)["spec"]["leaseTransitions"] == transitions
        replicas["a"][1].kill()
        killed = time.monotonic()
        jobs.wait(lambda: holder(jobs) == "b")
        jobs.mark(job)
        jobs.wait_phase(job, "Succeeded")
        first = next(when for when, name in writes if name == "b")
        assert [name for _, name in writes] == sorted(name for _, name in writes)
        assert replicas["b"][1].stop() == 0
        assert holder(jobs) == ""
        return first - killed
    finally:
        for proxy, operator in replicas.values():
            operator.kill()
            proxy.__exit__()
