"""A job goes through spec.capacity on a GKE that a test scripts: what it tries, says, makes and leaves."""

from dataclasses import replace
from typing import Any

import pytest
from tests.builders.gke.model import QUOTA, Fault, PoolRecord
from tests.builders.operator.cloud_site import SETTINGS, STOCKOUT, Site, jobset
from tests.builders.operator.world import NAMESPACE, Operator, World, job_manifest

from ptapi.accelerators import resolve
from ptapi.spec import CapacityOption
from ptkube.resources import EVENTS, POSTTRAINJOBS, Manifest
from ptoperator.controller.orphan_collector import OrphanCollector
from ptoperator.render.node_pool import pool_shape
from ptoperator.render.pods.pod import pools_of


def test_a_pool_is_made_before_the_pods_and_deleted_after_them(site: Site) -> None:
    site.create()
    site.run(30)
    assert jobset(site) is None
    assert site.status().phase == "Provisioning"
    (pool,) = site.model.pools.values()
    assert (pool.zone, pool.manifest["initial_node_count"]) == ("us-east5-a", 4)
    site.run_until(lambda: jobset(site))
    assert site.outcomes() == ["onDemand in us-east5-a: ready after 1m"]
    site.succeed()
    site.run_until(lambda: not site.model.pools)
    site.run(30)
    assert site.status().capacity.node_pools == []


def test_pods_run_on_their_own_pools_only(site: Site) -> None:
    site.provision(accelerator={"type": "v6e-16", "slices": 2})
    made = jobset(site)
    spec = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms[0]["matchExpressions"][0]["values"] == sorted(site.model.pools)
    assert len(site.model.pools) == 2
    keys = [each["key"] for each in spec["tolerations"]]
    assert keys == ["google.com/tpu", "posttrain.dev/node-pool", "cloud.google.com/gke-spot"]
    assert made["metadata"]["annotations"]["alpha.jobset.sigs.k8s.io/exclusive-topology"]


SAMPLERS: dict[str, Any] = {
    "algorithm": {"grpo": {"groupSize": 4}},
    "rewards": [{"builtin": "gsm8k"}],
    "accelerator": {"type": "v6e-4"},
    "training": {"steps": 10, "batchSize": 16},
    "rollout": {
        "maxNewTokens": 8, "placement": "separate", "separate": {"replicas": 2, "accelerator": {"type": "v5p-8"}},
    },
}  # fmt: skip


def test_samplers_get_pools_of_their_own_chips(site: Site) -> None:
    site.provision(**SAMPLERS)
    option = CapacityOption(type="onDemand")
    trainer, sampler = (pool_shape(resolve(name), option, "us-east5-a") for name in ("v6e-4", "v5p-8"))
    shapes = [pool.labels["posttrain-shape"] for _, pool in sorted(site.model.pools.items())]
    assert shapes == [trainer, sampler, sampler]
    for replicated in jobset(site)["spec"]["replicatedJobs"]:
        assert pools_of(replicated["template"]["spec"]["template"]["spec"]) == tuple(sorted(site.model.pools))
    site.succeed()
    site.run_until(lambda: not site.model.pools)


def test_a_pool_that_a_sampler_cannot_get_ends_the_attempt_for_all(site: Site) -> None:
    def second_fails(pool: PoolRecord) -> Fault | None:
        return STOCKOUT if pool.labels["posttrain-slice"] == "2" and pool.zone == "us-east5-a" else None

    site.model.fault_for = second_fails
    site.provision(capacity=[{"type": "spot"}], **SAMPLERS)
    assert [each.zone for each in site.status().capacity.attempts] == ["us-east5-a", "us-east5-b"]
    assert {pool.zone for pool in site.model.pools.values()} == {"us-east5-b"}


def test_a_stockout_moves_on_says_so_and_leaves_nothing(site: Site) -> None:
    site.faults["other"] = STOCKOUT
    site.provision(capacity=[{"type": "onDemand", "zones": ["us-east5-a"]}, {"type": "spot", "zones": ["us-east5-a"]}])
    first, second = site.outcomes()
    assert first == "onDemand in us-east5-a: ZONE_RESOURCE_POOL_EXHAUSTED in us-east5-a after 4m20s, trying spot"
    assert second.startswith("spot in us-east5-a: ready after ")
    (pool,) = site.model.pools.values()
    assert pool.manifest["config"]["spot"] is True
    assert [each.failure_class for each in site.status().capacity.attempts] == ["Stockout", ""]
    reasons = [event["reason"] for event in site.world.api.kinds(EVENTS.kind)]
    assert reasons.count("CapacityUnavailable") == 1


def test_zones_are_tried_in_order_and_the_clusters_where_none_are_named(site: Site) -> None:
    site.faults["us-east5-a"] = STOCKOUT
    site.provision(capacity=[{"type": "spot"}])
    assert [each.zone for each in site.status().capacity.attempts] == ["us-east5-a", "us-east5-b"]


def test_a_quota_error_names_metric_need_and_limit(site: Site) -> None:
    site.faults["other"] = Fault(refuse=("PERMISSION_DENIED", QUOTA))
    site.provision(capacity=[{"type": "onDemand", "zones": ["us-east5-a"]}, {"type": "spot", "zones": ["us-east5-a"]}])
    first = site.outcomes()[0]
    assert "quota TPU_V6E: needs 16, limit 8, short of 8" in first
    assert first.startswith("onDemand in us-east5-a: PERMISSION_DENIED in us-east5-a after 0s, trying spot")
    assert site.status().capacity.attempts[0].failure_class == "Quota"


def test_an_option_that_takes_too_long_gives_way_to_the_next(site: Site) -> None:
    site.faults["other"] = Fault(seconds=1e6)
    site.create(
        capacity=[
            {"type": "onDemand", "zones": ["us-east5-a"], "waitSeconds": 120},
            {"type": "spot", "zones": ["us-east5-a"]},
        ]
    )
    site.run_until(lambda: jobset(site))
    assert site.outcomes()[0] == "onDemand in us-east5-a: NOT_READY in us-east5-a after 2m, trying spot"


def test_the_list_starts_over_after_a_pause_that_doubles(site: Site) -> None:
    site.faults["us-east5-a"] = replace(STOCKOUT, seconds=10.0)
    site.create()
    site.run_until(lambda: len(site.status().capacity.attempts) == 3)
    first, second, _ = site.outcomes()
    assert first.endswith("starting over in 30s")
    assert second.endswith("starting over in 1m")
    del site.faults["us-east5-a"]
    site.run_until(lambda: jobset(site))
    assert len(site.model.pools) == 1


def test_a_job_fails_after_the_rounds_that_are_allowed(world: World) -> None:
    site = Site(world, replace(SETTINGS, capacity_rounds=2))
    site.faults["us-east5-a"] = replace(STOCKOUT, seconds=10.0)
    site.create()
    site.run_until(lambda: site.status().phase == "Failed")
    status = site.status()
    assert status.failure.failure_class == "Stockout"
    assert "tried 2 times without chips" in status.failure.message
    site.run_until(lambda: not site.model.pools)


def test_a_missing_role_ends_the_job_and_is_named(site: Site) -> None:
    words = 'Required "container.clusters.update" permission(s) for "projects/p".'
    site.faults["us-east5-a"] = Fault(refuse=("PERMISSION_DENIED", words))
    site.create()
    site.run_until(lambda: site.status().phase == "Failed")
    status = site.status()
    assert status.failure.failure_class == "ConfigError"
    assert "roles/container.clusterAdmin" in status.failure.message


def test_an_operator_without_gke_says_what_to_set(world: World) -> None:
    fields: Manifest = {"accelerator": {"type": "v6e-4"}, "capacity": [{"type": "spot"}], "preflight": "Skip"}
    world.api.create(POSTTRAINJOBS, job_manifest("llama", **fields))
    operator = Operator(world)
    for _ in range(5):
        operator.work()
        world.tick(11)
    job = world.api.find(POSTTRAINJOBS, "llama")
    assert job["status"]["phase"] == "Failed"
    assert "gke.cluster" in job["status"]["failure"]["message"]
    assert "finalizers" not in job["metadata"]


def test_one_slice_that_cannot_be_had_ends_the_attempt_for_all(site: Site) -> None:
    made: list[str] = []

    def second_fails(pool: PoolRecord) -> Fault | None:
        made.append(pool.name)
        return STOCKOUT if pool.labels["posttrain-slice"] == "1" and not pool.manifest["config"]["spot"] else None

    site.model.fault_for = second_fails
    site.create(
        capacity=[{"type": "onDemand", "zones": ["us-east5-a"]}, {"type": "spot", "zones": ["us-east5-b"]}],
        accelerator={"type": "v6e-16", "slices": 2},
    )
    site.run_until(lambda: jobset(site))
    assert {pool.zone for pool in site.model.pools.values()} == {"us-east5-b"}
    assert len(site.model.pools) == 2
    assert site.model.doubled == []


def test_a_pool_of_before_an_operators_crash_is_taken_up(site: Site) -> None:
    site.create()
    site.run(10)
    assert len(site.model.pools) == 1
    job = site.job()
    job["status"]["capacity"]["nodePools"] = []  # the status write was lost
    site.operator.restart()
    site.run_until(lambda: jobset(site))
    assert site.model.made == list(site.model.pools)


def test_somebody_elses_pool_of_that_name_is_left_alone(site: Site) -> None:
    site.create()
    job = site.job()
    assert job is not None
    from ptoperator.kube import names

    name = names.node_pool("llama", job["metadata"]["uid"], 0)
    site.model.pools[name] = PoolRecord({"name": name, "locations": [""], "config": {}}, state="RUNNING")
    site.run_until(lambda: site.status().phase == "Failed")
    status = site.status()
    assert "belongs to another owner" in status.failure.message
    assert list(site.model.pools) == [name]


def test_the_cluster_does_one_thing_at_a_time_and_is_not_pestered(site: Site) -> None:
    site.model.is_serial = True
    calls: list[str] = []
    site.client._strike = lambda call, is_after: calls.append(call)
    site.provision(accelerator={"type": "v6e-16", "slices": 3})
    assert len(site.model.pools) == 3
    assert calls.count("create_node_pool") <= 2 * 6  # each tried, refused once per operation, then held back


def test_deleting_a_job_deletes_its_pools_first(site: Site) -> None:
    site.provision()
    site.start_pods()
    site.run(10)
    site.world.api.delete(POSTTRAINJOBS, "llama", NAMESPACE)
    assert site.job() is not None
    site.run_until(lambda: site.job() is None)
    assert site.model.pools == {}
    assert jobset(site) is None


def test_deleting_a_job_whose_pool_is_being_made_deletes_that_pool(site: Site) -> None:
    site.create()
    site.run(10)
    site.world.api.delete(POSTTRAINJOBS, "llama", NAMESPACE)
    site.run_until(lambda: site.job() is None)
    assert site.model.pools == {}


def test_suspend_gives_the_chips_back_and_resume_gets_them_again(site: Site) -> None:
    site.provision()
    site.start_pods()
    site.run(10)
    patch = {"spec": {"runPolicy": {"suspend": True}}}
    site.world.api.patch(POSTTRAINJOBS, "llama", NAMESPACE, patch)
    site.run_until(lambda: not site.model.pools)
    site.run(30)
    assert site.status().phase == "Suspended"
    assert site.outcomes() == ["onDemand in us-east5-a: ready after 1m; released"]
    site.world.api.patch(POSTTRAINJOBS, "llama", NAMESPACE, {"spec": {"runPolicy": {"suspend": False}}})
    site.run_until(lambda: jobset(site))
    assert len(site.model.pools) == 1


def test_a_pool_waits_for_the_next_job_of_its_shape(world: World) -> None:
    site = Site(world, replace(SETTINGS, pool_idle_seconds=600.0))
    site.provision("one")
    site.succeed("one")
    site.run(30)
    (pool,) = site.model.pools.values()
    assert "posttrain-job-uid" not in pool.labels
    site.create("two")
    site.run(30)
    assert jobset(site, "two")
    assert site.model.made == [pool.name]
    assert pool.labels["posttrain-job"] == "two"
    assert site.status("two").capacity.node_pools[0].name == pool.name
    site.world.api.delete(POSTTRAINJOBS, "one", NAMESPACE)
    site.run(60)
    assert list(site.model.pools) == [pool.name]


def test_two_jobs_that_want_one_waiting_pool_get_one_each(world: World) -> None:
    site = Site(world, replace(SETTINGS, pool_idle_seconds=600.0))
    site.provision("one")
    site.succeed("one")
    site.run(30)
    site.create("two")
    site.create("three")
    site.run_until(lambda: jobset(site, "two") and jobset(site, "three"))
    assert len(site.model.pools) == 2
    assert site.model.doubled == []


@pytest.mark.parametrize("other", [{"accelerator": {"type": "v6e-32"}}, {"capacity": [{"type": "spot"}]}])
def test_a_pool_of_another_shape_is_not_taken(world: World, other: dict[str, Any]) -> None:
    site = Site(world, replace(SETTINGS, pool_idle_seconds=3600.0))
    site.provision("one")
    site.succeed("one")
    site.run(30)
    site.provision("two", **other)
    assert len(site.model.pools) == 2


@pytest.mark.parametrize(("share", "made"), [(False, 2), (True, 1)])
def test_a_pool_goes_to_another_namespace_only_where_that_is_allowed(world: World, share: bool, made: int) -> None:
    site = Site(world, replace(SETTINGS, pool_idle_seconds=3600.0, share_pools=share))
    site.provision("one")
    site.succeed("one")
    site.run(30)
    (pool,) = site.model.pools.values()
    pool.labels["posttrain-namespace"] = "team-b"
    site.provision("two")
    assert len(site.model.made) == made


def test_the_sweeper_deletes_what_nobody_holds_and_nothing_else(world: World) -> None:
    site = Site(world, replace(SETTINGS, pool_idle_seconds=600.0))
    site.provision("kept")
    (kept,) = site.model.pools
    mine = {"posttrain-managed-by": "posttrain", "posttrain-namespace": NAMESPACE}
    now = int(world.api.now.timestamp())
    for name, marks in {
        "orphan": {**mine, "posttrain-job-uid": "gone"},
        "other-team": {**mine, "posttrain-namespace": "elsewhere", "posttrain-job-uid": "gone"},
        "idle-long": {**mine, "posttrain-idle-since": str(now - 601)},
        "idle-new": {**mine, "posttrain-idle-since": str(now)},
        "foreign": {},
    }.items():
        manifest = {"name": name, "locations": [""], "config": {"resource_labels": marks}}
        site.model.pools[name] = PoolRecord(manifest, state="RUNNING")
    world.tick(11)
    OrphanCollector(world.api, site.gke, site.settings, [NAMESPACE], lambda: world.api.now).collect()
    world.tick(60)
    site.model.advance()
    assert set(site.model.pools) == {kept, "other-team", "idle-new", "foreign"}


def test_a_job_whose_pool_somebody_deleted_gets_another(site: Site) -> None:
    site.provision()
    (name,) = site.model.pools
    site.model.vanish(name)
    site.run_until(lambda: site.model.pools and len(site.status().capacity.attempts) == 2)
    assert "was gone" in site.outcomes()[0]
    site.run_until(lambda: jobset(site) and site.status().capacity.attempts[-1].ready)


def test_nodes_that_are_there_get_their_time_before_chips_are_bought(site: Site) -> None:
    site.create(capacity=[{"type": "existing", "waitSeconds": 60}, {"type": "spot", "zones": ["us-east5-a"]}])
    site.run(20)
    assert jobset(site) is not None
    assert site.model.made == []
    site.run_until(lambda: site.model.pools)
    assert site.outcomes()[0] == "existing: NOT_READY after 1m, trying spot in us-east5-a"
    site.run_until(lambda: jobset(site) and site.status().capacity.attempts[-1].ready)
    made = jobset(site)
    assert "affinity" in made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def test_nodes_that_are_there_and_free_are_taken(site: Site) -> None:
    site.create(capacity=[{"type": "existing", "waitSeconds": 60}, {"type": "spot"}])
    site.run(10)
    site.start_pods()
    site.run(120)
    assert site.model.made == []
    assert site.outcomes()[0].startswith("existing: ready after ")


def test_spot_nodes_that_do_not_come_back_are_looked_for_elsewhere(site: Site) -> None:
    site.provision(capacity=[{"type": "spot", "waitSeconds": 300}, {"type": "onDemand", "zones": ["us-east5-a"]}])
    site.start_pods()
    site.run(30)
    for pod in site.world.unfinished:
        site.world.disrupt(pod)
    site.faults["spot"] = replace(STOCKOUT, seconds=20.0)
    site.run_until(lambda: len(site.status().capacity.attempts) == 4)
    outcomes = site.outcomes()
    assert outcomes[0].startswith("spot in us-east5-a: ready after 1m; then pods had no nodes for 5m")
    assert [each.split(":")[0] for each in outcomes[1:]] == [
        "spot in us-east5-a", "spot in us-east5-b", "onDemand in us-east5-a"
    ]  # fmt: skip
    site.run_until(lambda: jobset(site) and site.status().capacity.attempts[-1].ready)
    assert site.status().restarts == {"HostError": 1}


def test_the_time_that_a_pool_took_is_not_held_against_its_nodes(site: Site) -> None:
    site.model.seconds = 250.0
    site.provision(capacity=[{"type": "spot", "waitSeconds": 300}, {"type": "onDemand", "zones": ["us-east5-a"]}])
    site.run(200)  # nodes are a while in coming
    site.start_pods()
    site.run(30)
    assert site.outcomes() == ["spot in us-east5-a: ready after 4m10s"]
    assert site.status().phase in ("Starting", "Running")


def test_half_of_the_nodes_are_not_enough(site: Site) -> None:
    site.create(capacity=[{"type": "existing", "waitSeconds": 60}, {"type": "spot", "zones": ["us-east5-a"]}])
    site.run(20)
    for pod in site.world.unfinished[:2]:
        site.world.start(pod)
    site.run_until(lambda: site.model.pools)
    assert site.outcomes()[0] == "existing: NOT_READY after 1m, trying spot in us-east5-a"


def test_flex_start_waits_for_its_nodes_with_its_pods(site: Site) -> None:
    site.provision(capacity=[{"type": "flexStart", "zones": ["us-east5-a"], "waitSeconds": 600}, {"type": "spot"}])
    assert site.status().capacity.attempts[0].ready is None
    site.run_until(lambda: len(site.status().capacity.attempts) == 2)
    assert site.outcomes()[0] == "flexStart in us-east5-a: NOT_READY in us-east5-a after 10m, trying spot"
    site.run_until(lambda: jobset(site) and site.status().capacity.attempts[-1].ready)
    assert all(pool.manifest["config"]["spot"] for pool in site.model.pools.values())


def test_gke_that_cannot_be_asked_is_said_and_waited_for(site: Site) -> None:
    site.client._strike = _always_unavailable
    site.create()
    site.run(60)
    condition = next(each for each in site.status().conditions if each.type == "CapacityReady")
    assert "GKE cannot be queried: UNAVAILABLE" in condition.message
    site.client._strike = lambda call, is_after: None
    site.run_until(lambda: jobset(site))


def _always_unavailable(call: str, is_after: bool) -> None:
    from google.api_core import exceptions

    raise exceptions.ServiceUnavailable("connection refused")


def test_a_running_job_costs_no_calls_of_the_cloud(site: Site) -> None:
    site.provision()
    site.start_pods()
    site.run(30)
    calls: list[str] = []
    site.client._strike = lambda call, is_after: calls.append(call)
    site.run(600)
    assert calls == []


def test_many_waiting_jobs_share_one_look(world: World) -> None:
    site = Site(world)
    site.model.seconds = 1e6
    for number in range(20):
        site.create(f"job-{number}")
    site.run(30)
    calls: list[str] = []
    site.client._strike = lambda call, is_after: calls.append(call)
    site.run(600)
    assert calls.count("list_node_pools") <= 2 * 130  # twice each call (before, after), at most one per five seconds


def test_a_waiting_job_asks_kubernetes_nothing_between_two_events(world: World) -> None:
    site = Site(world)
    site.model.seconds = 1e6
    site.create(capacity=[{"type": "onDemand", "zones": ["us-east5-a"]}])
    site.run(60)
    calls: list[str] = []
    api = world.api

    class Counting:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(api, name)

    site.operator.client = Counting()
    site.run(300)
    assert calls == []
    assert site.status().phase == "Provisioning"


def test_the_cpu_pool_for_pathways_heads_is_made_once_before_the_chips_and_stays(site: Site) -> None:
    pathways: Manifest = {"pathways": {"enabled": True}, "output": {"uri": "gs://bucket/runs"}}
    site.create("one", **pathways)
    site.run(5)
    assert list(site.model.pools) == ["cpu-np"]
    assert site.waits_for("one") == "node pool cpu-np for Pathways' heads is being created"
    site.create("two", output={"uri": "gs://bucket/others"}, pathways={"enabled": True})
    site.run_until(lambda: jobset(site, "one") and jobset(site, "two"))
    heads = site.model.pools["cpu-np"]
    assert (heads.manifest["initial_node_count"], heads.labels) == (0, {"posttrain-role": "pathways-heads"})
    for name in ("one", "two"):
        site.world.api.delete(POSTTRAINJOBS, name, NAMESPACE)
    site.run_until(lambda: list(site.model.pools) == ["cpu-np"])
    OrphanCollector(site.world.api, site.gke, site.settings, [NAMESPACE], lambda: site.world.api.now).collect()
    site.run(120)
    assert list(site.model.pools) == ["cpu-np"]


def test_a_cpu_pool_of_that_name_that_is_there_is_taken_as_it_is(site: Site) -> None:
    there = PoolRecord({"name": "cpu-np", "locations": [""], "config": {}}, state="RUNNING")
    site.model.pools["cpu-np"] = there
    site.provision(pathways={"enabled": True}, output={"uri": "gs://bucket/runs"})
    assert site.model.pools["cpu-np"] is there
    assert len(site.model.made) == 1
