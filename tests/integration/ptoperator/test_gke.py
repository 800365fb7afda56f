"""The running operator on a pretended GKE: node pools over gRPC, their nodes and pods in the API server."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.builders.cluster.operator_process import Killer, OperatorProcess, WriteProxy
from tests.builders.gke.model import ZONE_EXHAUSTED, Fault, GkeModel, PoolRecord
from tests.builders.gke.nodes import GkeNodes
from tests.builders.gke.server import CLUSTER, LOCATION, PROJECT, GkeServer, Twist

from ptkube.client import Kube
from ptkube.resources import JOBSETS, NODES, POSTTRAINJOBS
from ptlocal.kubelet.ports import free_port

SECOND_CHOICE = [{"type": "onDemand", "zones": ["us-east5-a"]}, {"type": "spot", "zones": ["us-east5-b"]}]


class Site:
    """A GKE and the settings of an operator on it."""

    def __init__(self, model: GkeModel, server: GkeServer) -> None:
        self.model = model
        self.server = server

    def env(self, **more: str) -> dict[str, str]:
        return {
            "POSTTRAIN_GKE_PROJECT": PROJECT,
            "POSTTRAIN_GKE_LOCATION": LOCATION,
            "POSTTRAIN_GKE_CLUSTER": CLUSTER,
            "POSTTRAIN_GKE_ENDPOINT": self.server.endpoint,
            "POSTTRAIN_CLOUD_POLL_SECONDS": "0.4",
            "POSTTRAIN_SWEEP_SECONDS": "2",
            "POSTTRAIN_POOL_IDLE_SECONDS": "0",
            "POSTTRAIN_SILENT_START_SECONDS": "0.5",
            **more,
        }


@pytest.fixture
def site(control_plane: Any, kube: Kube, namespace: str) -> Iterator[Site]:
    with GkeNodes(kube, namespace) as nodes:
        model = GkeModel(time.monotonic, seconds=1.0, on_nodes=nodes.on_nodes)
        with GkeServer(model) as server:
            yield Site(model, server)


def out_of_stock_on_demand(pool: PoolRecord) -> Fault | None:
    return None if pool.manifest["config"]["spot"] else Fault(outcome=ZONE_EXHAUSTED, condition="GCE_STOCKOUT")


def tpu_job(jobs: Any, name: str, capacity: list[dict[str, Any]], **spec: Any) -> None:
    spec = {"preflight": "Skip", "training": {"steps": 3, "batchSize": 16}, **spec}
    jobs.create(name, accelerator={"type": "v6e-8", "slices": 2}, capacity=capacity, **spec)


def test_a_job_gets_its_pools_runs_on_them_and_leaves_nothing(
    control_plane: Any, kube: Kube, jobs: Any, site: Site, tmp_path: Path
) -> None:
    site.model.fault_for = out_of_stock_on_demand
    operator = OperatorProcess(control_plane.kubeconfig, tmp_path, jobs.namespace, free_port(), site.env())
    operator.start()
    try:
        operator.wait_ready()
        tpu_job(jobs, "tuned", SECOND_CHOICE)
        status = jobs.wait_phase("tuned", "Succeeded")
        first, second = status.capacity.attempts
        assert first.outcome.startswith("ZONE_RESOURCE_POOL_EXHAUSTED in us-east5-a after ")
        assert first.outcome.endswith("trying spot in us-east5-b")
        assert second.outcome.startswith("ready after")
        jobs.wait(lambda: not site.model.ours(), shown=lambda: site.model.pools)
        jobs.wait(lambda: jobs.status("tuned").capacity.node_pools == [])
        assert kube.list(NODES, labels="cloud.google.com/gke-nodepool").items == []
        jobs.delete("tuned")
        jobs.wait(lambda: jobs.find(POSTTRAINJOBS, "tuned") is None)
    finally:
        operator.kill()
    assert "Traceback" not in operator.log.read_text()
    assert site.model.doubled == []


def test_a_second_job_runs_on_the_pools_of_the_first(control_plane: Any, jobs: Any, site: Site, tmp_path: Path) -> None:
    env = site.env(POSTTRAIN_POOL_IDLE_SECONDS="1000")
    operator = OperatorProcess(control_plane.kubeconfig, tmp_path, jobs.namespace, free_port(), env)
    operator.start()
    try:
        operator.wait_ready()
        tpu_job(jobs, "first", [{"type": "spot", "zones": ["us-east5-b"]}])
        jobs.wait_phase("first", "Succeeded")
        jobs.wait(lambda: jobs.status("first").capacity.node_pools == [])
        tpu_job(jobs, "second", [{"type": "spot", "zones": ["us-east5-b"]}])
        jobs.wait_phase("second", "Succeeded")
        assert len(site.model.made) == 2
    finally:
        operator.kill()


def test_a_deleted_jobs_pools_go_and_an_orphan_is_swept(
    control_plane: Any, jobs: Any, site: Site, tmp_path: Path
) -> None:
    orphan = {"posttrain-managed-by": "posttrain", "posttrain-namespace": jobs.namespace, "posttrain-job-uid": "gone"}
    site.model.pools["orphan"] = PoolRecord(
        {"name": "orphan", "locations": ["us-east5-a"], "config": {"resource_labels": orphan}}, state="RUNNING"
    )
    site.model.fault_for = lambda pool: Fault(seconds=1000.0)
    operator = OperatorProcess(control_plane.kubeconfig, tmp_path, jobs.namespace, free_port(), site.env())
    operator.start()
    try:
        operator.wait_ready()
        tpu_job(jobs, "regretted", [{"type": "spot"}])
        jobs.wait(lambda: len(jobs.status("regretted").capacity.node_pools) == 2)
        jobs.delete("regretted")
        jobs.wait(lambda: jobs.find(POSTTRAINJOBS, "regretted") is None)
        jobs.wait(lambda: not site.model.ours(), shown=lambda: site.model.pools)
    finally:
        operator.kill()


class CloudKiller(Killer):
    """At each change of GKE too."""

    def before_call(self, call: str, pool: str) -> Twist | None:
        if call.startswith(("List", "Get")) or self.on_write("before", f"GKE {call} {pool}"):
            return None
        return Twist(refuse=("UNAVAILABLE", "the operator was killed before this call"))

    def after_call(self, call: str, pool: str) -> None:
        if not call.startswith(("List", "Get")):
            self.on_write("after", f"GKE {call} {pool}")


@pytest.mark.slow
def test_an_operator_killed_at_every_write_makes_no_pool_too_many_and_leaves_none(
    control_plane: Any, kube: Kube, jobs: Any, site: Site, tmp_path: Path
) -> None:
    killer = CloudKiller()
    site.model.fault_for = out_of_stock_on_demand
    site.server.script, site.server.after = killer.before_call, killer.after_call
    with WriteProxy(control_plane.kubeconfig, tmp_path, killer.on_write) as proxy:
        operator = OperatorProcess(proxy.kubeconfig, tmp_path, jobs.namespace, env=site.env())
        killer.operator = operator
        tpu_job(jobs, "hunted", SECOND_CHOICE)
        operator.live_until(lambda: str(jobs.status("hunted").phase) == "Succeeded")
        operator.live_until(lambda: not site.model.ours())
        assert len(kube.list(JOBSETS, jobs.namespace).items) == 1
        jobs.delete("hunted")
        operator.live_until(lambda: jobs.find(POSTTRAINJOBS, "hunted") is None)
        operator.kill()
    struck = [what for what, tries in killer.tries.items() if tries >= 2]
    assert sum(what.startswith("GKE CreateNodePool") for what in struck) >= 2, struck
    assert any("GKE DeleteNodePool" in what for what in struck), struck
    assert len(struck) >= 10, struck
    assert site.model.doubled == []
    assert Counter(site.model.made).most_common(1)[0][1] <= 3
    assert site.model.ours() == []
