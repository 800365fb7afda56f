"""A queue together with node pools: quota first, then chips, then pods; and both given back together."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.builders.gke.model import Fault, PoolRecord
from tests.builders.kueue.model import CHECK, QUEUE, KueueModel
from tests.builders.operator.world import NAMESPACE, World, job_manifest
from tests.unit.ptoperator.capacity.test_capacity import SETTINGS, STOCKOUT, Site
from tests.unit.ptoperator.render.test_render import pod_spec

from ptapi.errors import SpecError
from ptapi.load import parse_job
from ptkube.resources import ADMISSION_CHECKS, JOBSETS, POSTTRAINJOBS, Manifest
from ptoperator.controller.orphan_collector import OrphanCollector
from ptoperator.kube import labels
from ptoperator.kueue.admission_check import mark_active
from ptoperator.render.pods.pod import pools_of

SPOT = [{"type": "spot", "zones": ["us-east5-b"]}]


@dataclass
class QueuedSite(Site):
    """A cluster with a GKE and Kueue: 16 chips of quota."""

    kueue: KueueModel = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kueue = KueueModel(self.world.api, 16, NAMESPACE)

    def create(self, name: str = "llama", capacity: list[Manifest] | None = None, **spec: Any) -> None:
        spec = {"queue": QUEUE, "output": {"uri": f"gs://lab/{name}"}, **spec}
        super().create(name, capacity or SPOT, **spec)

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds // 5)):
            self.kueue.run()
            super().run(5)
        self.kueue.run()

    def jobset(self, name: str = "llama") -> Manifest:
        current = self.world.api.find(JOBSETS, name)
        assert current is not None
        return current

    def is_running(self, name: str = "llama") -> Callable[[], bool]:
        return lambda: (current := self.world.api.find(JOBSETS, name)) is not None and not current["spec"]["suspend"]

    def says(self, kind: str, name: str = "llama") -> tuple[str, str, str]:
        match = next((each for each in self.status(name).conditions if each.type == kind), None)
        return (match.status, match.reason, match.message) if match else ("", "", "")

    def suspend(self, value: bool) -> None:
        self.world.api.patch(POSTTRAINJOBS, "llama", NAMESPACE, {"spec": {"runPolicy": {"suspend": value}}})


@pytest.fixture
def site(world: World) -> QueuedSite:
    return QueuedSite(world)


def test_quota_comes_first_then_the_pools_then_the_pods(site: QueuedSite) -> None:
    site.kueue.chips = 0
    site.create()
    site.run(120)
    assert site.status().phase == "Queued"
    assert site.says("QuotaReserved")[2].startswith("waiting for 16 v6e chips in cluster-queue")
    assert (site.model.made, site.world.pods, site.status().capacity.attempts) == ([], [], [])
    site.kueue.chips = 16
    site.run_until(lambda: site.model.made)
    assert site.jobset()["spec"]["suspend"] is True
    assert site.world.pods == []
    site.run(10)
    assert site.status().phase == "Provisioning"
    assert site.says("QuotaReserved") == ("True", "Admitted", "cluster-queue has reserved 16 v6e chips")
    assert site.says("CapacityReady")[2].startswith("spot in us-east5-b: 0 of 1 node pools ready; pool llama-")
    site.run_until(site.is_running())
    assert site.outcomes()[0].startswith("spot in us-east5-b: ready after 1m")
    site.finish()
    site.run_until(lambda: site.status().phase == "Succeeded" and not site.model.pools)
    assert site.status().capacity.node_pools == []


def test_pods_are_bound_to_their_pools_by_what_kueue_lets_a_check_add(site: QueuedSite) -> None:
    site.create(accelerator={"type": "v6e-8", "slices": 2})
    site.run_until(site.is_running())
    spec = pod_spec(site.jobset())
    assert spec["nodeSelector"]["posttrain.dev/node-pool"] == "true"
    assert pools_of(spec) == tuple(sorted(site.model.pools))
    assert len(site.model.pools) == 2
    for pool in site.model.pools.values():
        assert (labels.POOL_TAINT, pool.name) in pool.manifest["config"]["taints"]
        assert pool.manifest["config"]["labels"] == {"posttrain.dev/node-pool": "true"}
    assert "affinity" not in spec


def test_pathways_heads_are_not_bound_to_the_pools(site: QueuedSite) -> None:
    site.create(pathways={"enabled": True}, algorithm={"grpo": {"groupSize": 8}}, rewards=[{"builtin": "gsm8k"}])
    site.run_until(site.is_running())
    head, workers = (each["template"]["spec"]["template"]["spec"] for each in site.jobset()["spec"]["replicatedJobs"])
    assert pools_of(head) == ()
    assert pools_of(workers) == tuple(name for name in site.model.pools if name != "cpu-np")


def test_samplers_are_bound_to_the_pools_beside_the_trainer(site: QueuedSite) -> None:
    site.create(
        algorithm={"grpo": {"groupSize": 8}},
        rewards=[{"builtin": "gsm8k"}],
        accelerator={"type": "v6e-4"},
        rollout={"maxNewTokens": 8, "placement": "separate", "separate": {"replicas": 2}},
    )
    site.run_until(site.is_running())
    assert len(site.model.pools) == 3
    for replicated in site.jobset()["spec"]["replicatedJobs"]:
        assert pools_of(replicated["template"]["spec"]["template"]["spec"]) == tuple(sorted(site.model.pools))
    assert site.says("QuotaReserved")[2] == "cluster-queue has reserved 4 v6e chips and 8 v6e chips to sample"


def test_an_eviction_gives_the_pools_back_and_is_charged_to_nobody(site: QueuedSite) -> None:
    site.create(runPolicy={"maxRestarts": 0})
    site.run_until(site.is_running())
    site.start_pods()
    site.run(10)
    site.kueue.chips = 0
    site.kueue.evict("llama")
    site.run_until(lambda: not site.model.pools)
    site.run(60)
    status = site.status()
    assert (status.phase, status.restarts, status.failure) == ("Queued", {}, None)
    assert site.says("QuotaReserved")[:2] == ("False", "Evicted")
    assert "revoked the quota (Preempted: made room for another)" in site.says("QuotaReserved")[2]
    assert all(each.ended for each in status.capacity.attempts)
    site.kueue.chips = 16
    site.run_until(site.is_running())
    site.succeed()
    assert site.status().restarts == {}


def test_an_eviction_before_the_pods_gives_back_what_was_being_made(site: QueuedSite) -> None:
    site.faults["spot"] = Fault(seconds=1000.0)
    site.create()
    site.run_until(lambda: site.model.made)
    site.kueue.chips = 0
    site.kueue.evict("llama")
    site.run_until(lambda: not site.model.pools)
    site.run(30)
    assert site.status().phase == "Queued"
    assert site.status().capacity.node_pools == []


def test_who_preempts_takes_the_pools_over_and_the_evicted_job_makes_new_ones_later(world: World) -> None:
    site = QueuedSite(world, settings=replace(SETTINGS, pool_idle_seconds=900.0))
    site.create("low")
    site.run_until(site.is_running("low"))
    first = list(site.model.made)
    site.create("high")
    site.run(10)
    site.kueue.first = "high"
    site.kueue.evict("low")
    site.run_until(site.is_running("high"))
    assert list(pools_of(pod_spec(site.jobset("high")))) == site.model.made == first
    site.kueue.chips = 32
    site.run_until(site.is_running("low"))
    assert pools_of(pod_spec(site.jobset("low"))) == (site.model.made[1],)
    assert (len(site.model.pools), site.model.doubled) == (2, [])


def test_after_an_eviction_pods_are_bound_to_the_new_pools_only(site: QueuedSite) -> None:
    """Jobs of the JobSet would keep what an earlier admission added."""
    site.create()
    site.run_until(site.is_running())
    (old,) = site.model.pools
    site.kueue.chips = 0
    site.kueue.evict("llama")
    site.run_until(lambda: not site.model.pools)
    site.model.pools[old] = PoolRecord(
        {"name": old, "config": {"resource_labels": {"posttrain-managed-by": "posttrain"}}}
    )
    site.kueue.chips = 16
    site.run_until(site.is_running())
    assert pools_of(pod_spec(site.jobset())) == (site.model.made[-1],)
    assert site.model.made[-1] != old


def test_a_pool_that_comes_late_for_a_job_that_waits_again_is_swept(site: QueuedSite) -> None:
    site.create()
    site.run_until(site.is_running())
    (late,) = site.model.pools.values()
    site.kueue.chips = 0
    site.kueue.evict("llama")
    site.run_until(lambda: not site.model.pools)
    site.run(40)
    site.model.pools[late.name] = PoolRecord(late.manifest, state="RUNNING")
    OrphanCollector(site.world.api, site.gke, site.settings, [NAMESPACE], lambda: site.world.api.now).collect()
    assert site.model.pools[late.name].state == "STOPPING"


def test_a_round_without_chips_gives_the_quota_back_and_queues_again(site: QueuedSite) -> None:
    site.faults["spot"] = STOCKOUT
    site.create()
    site.run_until(lambda: site.kueue.used() == 16)
    site.run_until(lambda: len(site.outcomes()) == 1 and "starting over" in site.outcomes()[0])
    site.run_until(lambda: site.kueue.used() == 0, 15)
    assert site.world.api.find(JOBSETS, "llama") is None
    assert site.status().phase == "Provisioning"
    assert site.says("QuotaReserved")[:2] == ("False", "WaitingForQuota")
    assert site.outcomes()[0].startswith("spot in us-east5-b: ZONE_RESOURCE_POOL_EXHAUSTED in us-east5-b after 4m")
    site.run_until(lambda: not site.model.pools)
    site.faults.clear()
    site.run_until(site.is_running())
    assert site.status().restarts == {}


def test_while_one_job_pauses_another_gets_the_quota(site: QueuedSite) -> None:
    site.faults["us-east5-b"] = STOCKOUT
    site.create("stuck")
    site.run_until(lambda: site.kueue.used() == 16)
    site.create("other", [{"type": "onDemand", "zones": ["us-east5-a"]}])
    site.run_until(site.is_running("other"))
    assert site.status("other").phase == "Provisioning"
    assert not site.kueue.has_quota("stuck")


def test_the_next_option_is_tried_with_the_same_quota(site: QueuedSite) -> None:
    site.faults["spot"] = STOCKOUT
    site.create(capacity=[*SPOT, {"type": "onDemand", "zones": ["us-east5-a"]}])
    site.run_until(lambda: site.kueue.used() == 16)
    made = site.jobset()["metadata"]["uid"]
    site.run_until(site.is_running())
    assert site.jobset()["metadata"]["uid"] == made
    assert [each.option for each in site.status().capacity.attempts] == ["spot in us-east5-b", "onDemand in us-east5-a"]


def test_nodes_that_are_there_are_tried_with_pods_and_then_pools_with_new_quota(site: QueuedSite) -> None:
    site.create(capacity=[{"type": "existing", "waitSeconds": 120}, *SPOT])
    site.run_until(site.is_running(), 60)
    assert (pools_of(pod_spec(site.jobset())), site.model.made) == ((), [])
    site.run_until(lambda: site.model.made)
    site.run_until(site.is_running())
    assert pools_of(pod_spec(site.jobset())) == tuple(site.model.pools)
    assert site.status().restarts == {}


def test_pools_that_vanish_under_waiting_pods_are_made_again(site: QueuedSite) -> None:
    site.create()
    site.run_until(site.is_running())
    (pool,) = site.model.pools
    site.model.vanish(pool)
    site.run_until(lambda: len(site.model.made) == 2)
    site.run_until(site.is_running())
    site.succeed()


def test_another_check_that_waits_is_named(site: QueuedSite) -> None:
    site.kueue.checks = ("budget", CHECK)
    site.create()
    site.run_until(lambda: "the chips are ready" in site.says("CapacityReady")[2])
    assert site.says("CapacityReady")[2] == "the chips are ready; admission check budget is Pending: "
    assert site.jobset()["spec"]["suspend"] is True


@pytest.mark.parametrize("moment", ["queued", "provisioning", "running", "pausing"])
def test_a_suspended_job_holds_neither_quota_nor_chips_at_any_moment(site: QueuedSite, moment: str) -> None:
    _bring_to(site, moment)
    site.suspend(True)
    site.run_until(lambda: site.status().phase == "Suspended" and not site.model.pools)
    assert site.kueue.used() == 0
    assert site.world.api.find(JOBSETS, "llama") is None
    site.faults.clear()
    site.kueue.chips = 16
    site.suspend(False)
    site.run_until(site.is_running())
    assert site.status().restarts == {}


@pytest.mark.parametrize("moment", ["queued", "provisioning", "running", "pausing"])
def test_a_deleted_job_leaves_nothing_at_any_moment(site: QueuedSite, moment: str) -> None:
    _bring_to(site, moment)
    site.world.api.delete(POSTTRAINJOBS, "llama", NAMESPACE)
    site.run_until(lambda: site.job() is None and not site.model.pools)
    site.run(20)
    left = {kind for kind, _, _ in site.world.api.objects} - {"Event", "LocalQueue", "AdmissionCheck"}
    assert left == set()


def _bring_to(site: QueuedSite, moment: str) -> None:
    site.kueue.chips = 0 if moment == "queued" else 16
    if moment == "provisioning":
        site.faults["spot"] = Fault(seconds=1000.0)
    if moment == "pausing":
        site.faults["spot"] = STOCKOUT
    site.create()
    if moment == "queued":
        site.run(60)
    elif moment == "provisioning":
        site.run_until(lambda: site.model.pools)
    elif moment == "pausing":
        site.run_until(lambda: site.status().capacity.retry_after)
    else:
        site.run_until(site.is_running())
        site.start_pods()


def test_a_cluster_queue_that_never_asks_for_pools_fails_the_job_and_says_what_it_lacks(site: QueuedSite) -> None:
    site.kueue.checks = ()
    site.create()
    site.run_until(lambda: site.status().phase == "Failed", 120)
    failure = site.status().failure
    assert failure.failure_class == "ConfigError"
    assert failure.message.startswith(
        "cluster-queue admits jobs without an admission check for their node pools; hint: add"
    )
    site.run(30)
    assert site.world.unfinished == []


def test_a_job_on_nodes_that_are_there_is_answered_at_once(site: QueuedSite) -> None:
    site.create(capacity=[{"type": "existing"}])
    site.run_until(site.is_running(), 60)
    workload = site.kueue.of("llama")
    (check,) = workload["status"]["admissionChecks"]
    assert (check["message"], check["podSetUpdates"]) == ("nodes are ready", [])


def test_more_pools_than_a_check_can_name_are_refused() -> None:
    accelerator = {"type": "v6e-8", "slices": 9}
    spec = {"accelerator": accelerator, "capacity": SPOT, "training": {"batchSize": 72}}
    parse_job(job_manifest(**spec))
    with pytest.raises(SpecError, match=r"spec.accelerator.slices: 9.*at most 8 with queue"):
        parse_job(job_manifest(**spec, queue="team"))


def test_the_check_is_marked_active_once_and_only_ours(site: QueuedSite) -> None:
    api = site.world.api
    mark_active(api, api.now)
    marked = api.find(ADMISSION_CHECKS, CHECK)
    (condition,) = marked["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Active", "True", "Active")
    assert "status" not in api.get(ADMISSION_CHECKS, "budget")
    writes = api.writes
    mark_active(api, api.now)
    assert api.writes == writes
