"""The GKE client against a gRPC server that speaks ClusterManager: what is asked, what is understood, what is kept."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from google.cloud import container_v1 as container
from tests.builders.gke.model import QUOTA, ZONE_EXHAUSTED, Fault, GkeModel, PoolRecord
from tests.builders.gke.server import CLUSTER, LOCATION, PROJECT, GkeServer, Twist
from tests.builders.operator.world import job_manifest

from ptapi.load import parse_job
from ptapi.spec import CapacityOption
from ptoperator.capacity.cloud import ClaimPool, CreatePool, DeletePool, PoolState, ReleasePool
from ptoperator.capacity.gke.client import Gke
from ptoperator.capacity.gke.convert import is_ours, operation_of, pool_of
from ptoperator.kube import labels
from ptoperator.render import layout_of
from ptoperator.render.node_pool import node_pool, owner_labels
from ptoperator.settings import Settings

ZONE = "us-east5-a"
SPOT = CapacityOption(type="spot")


@pytest.fixture
def model() -> GkeModel:
    return GkeModel(time.monotonic, seconds=0.0)


@pytest.fixture
def server(model: GkeModel) -> Iterator[GkeServer]:
    with GkeServer(model) as running:
        yield running


@pytest.fixture
def settings(server: GkeServer) -> Settings:
    return Settings(
        gke_project=PROJECT,
        gke_location=LOCATION,
        gke_cluster=CLUSTER,
        gke_endpoint=server.endpoint,
        cloud_poll_seconds=0.0,
        cloud_timeout_seconds=5.0,
    )


@pytest.fixture
def gke(settings: Settings) -> Gke:
    return Gke(settings)


def create(settings: Settings, uid: str = "u1", option: CapacityOption = SPOT) -> CreatePool:
    manifest = job_manifest("llama", accelerator={"type": "v6e-16"}, training={"batchSize": 16})
    manifest["metadata"]["uid"] = uid
    return CreatePool(node_pool(layout_of(parse_job(manifest), settings), option, ZONE, 0))


def labels_of(action: CreatePool) -> dict[str, str]:
    resource_labels: dict[str, str] = action.manifest["config"]["resource_labels"]
    return resource_labels


def test_a_pool_is_created_seen_and_deleted(gke: Gke, settings: Settings, model: GkeModel) -> None:
    action = create(settings)
    answer = gke.carry_out(action)
    assert answer.failure is None
    snapshot = gke.snapshot()
    assert snapshot.zones == ("us-east5-a", "us-east5-b")
    (pool,) = snapshot.pools
    assert (pool.name, pool.job_uid, pool.slice, pool.state) == (action.pool, "u1", 0, PoolState.RUNNING)
    assert pool.shape == labels_of(action)["posttrain-shape"]
    operation = snapshot.operation(answer.operation)
    assert (operation.pool, operation.is_done, operation.failures) == (action.pool, True, ())
    gke.carry_out(DeletePool(action.pool, "u1"))
    assert gke.snapshot().pools == ()


def test_what_arrives_is_what_was_asked_for(gke: Gke, settings: Settings, model: GkeModel) -> None:
    action = create(settings)
    gke.carry_out(action)
    config = model.pools[action.pool].manifest["config"]
    assert config["machine_type"] == "ct6e-standard-4t"
    assert config["spot"] is True
    assert config["gvnic"] == {"enabled": True}
    assert config["workload_metadata_config"]["mode"] == "GKE_METADATA"
    assert {taint["key"]: taint["effect"] for taint in config["taints"]} == {
        "posttrain.dev/node-pool": "NO_SCHEDULE",
        "cloud.google.com/gke-spot": "NO_SCHEDULE",
    }
    assert model.pools[action.pool].manifest["placement_policy"]["tpu_topology"] == "4x4"


@pytest.mark.parametrize("twist", [Twist(lose_answer=True), Twist(lose_answer=True, seconds=0.2)])
def test_a_pool_whose_answer_was_lost_is_adopted(
    gke: Gke, settings: Settings, server: GkeServer, model: GkeModel, twist: Twist
) -> None:
    server.script = lambda call, pool: twist if call == "CreateNodePool" else None
    answer = gke.carry_out(create(settings))
    assert (answer.failure, answer.operation) == (None, "")
    assert len(model.pools) == 1


def test_a_call_that_takes_too_long_passes_by_itself(settings: Settings, server: GkeServer, model: GkeModel) -> None:
    server.script = lambda call, pool: (
        Twist(seconds=1.0, refuse=("INTERNAL", "x")) if call == "CreateNodePool" else None
    )
    answer = Gke(replace(settings, cloud_timeout_seconds=0.2)).carry_out(create(settings))
    assert (answer.failure.code, answer.failure.is_definite) == ("DEADLINE_EXCEEDED", False)


@pytest.mark.parametrize(
    ("refuse", "kind"),
    [
        (("RESOURCE_EXHAUSTED", "Quota exceeded for quota metric 'Write requests' and limit '60 per minute'."), None),
        (("INTERNAL", "Internal error."), None),
        (("UNAVAILABLE", "The service is currently unavailable."), None),
        (("FAILED_PRECONDITION", "Cluster is running incompatible operation operation-17."), None),
        (("PERMISSION_DENIED", QUOTA), "Quota"),
        (("PERMISSION_DENIED", 'Required "container.clusters.update" permission(s).'), "ConfigError"),
        (("INVALID_ARGUMENT", "Machine type ct6e-standard-4t is not available in zone us-east5-z."), "ConfigError"),
        (("RESOURCE_EXHAUSTED", ZONE_EXHAUSTED), "Stockout"),
        (("INVALID_ARGUMENT", "reservation projects/p/reservations/r1 not found"), "Reservation"),
    ],
)
def test_refusals_have_a_class(
    gke: Gke, settings: Settings, server: GkeServer, refuse: tuple[str, str], kind: str | None
) -> None:
    server.script = lambda call, pool: Twist(refuse=refuse) if call == "CreateNodePool" else None
    failure = gke.carry_out(create(settings)).failure
    assert failure.kind == kind


@pytest.mark.parametrize("leaves_nothing", [False, True])
def test_a_stockout_is_read_from_the_operation_and_from_the_pool(
    gke: Gke, settings: Settings, model: GkeModel, leaves_nothing: bool
) -> None:
    model.fault_for = lambda pool: Fault(
        outcome=ZONE_EXHAUSTED, condition="GCE_STOCKOUT", leaves_nothing=leaves_nothing
    )
    answer = gke.carry_out(create(settings))
    snapshot = gke.snapshot()
    operation = snapshot.operation(answer.operation)
    assert {failure.kind for failure in operation.failures} == {"Stockout"}
    assert operation.failures[0].code == "ZONE_RESOURCE_POOL_EXHAUSTED"
    states = [(pool.state, {failure.kind for failure in pool.failures}) for pool in snapshot.pools]
    assert states == ([] if leaves_nothing else [(PoolState.ERROR, {"Stockout"})])


@pytest.mark.parametrize("state", ["RUNNING_WITH_ERROR", "RECONCILING", "STOPPING", "ERROR"])
def test_every_state_of_a_pool_is_understood(gke: Gke, settings: Settings, model: GkeModel, state: str) -> None:
    gke.carry_out(create(settings))
    gke.snapshot()
    (pool,) = model.pools.values()
    pool.state = state
    assert [each.state for each in gke.snapshot().pools] == [state]


def test_only_one_of_two_takes_a_pool_over(gke: Gke, settings: Settings, model: GkeModel) -> None:
    action = create(settings)
    gke.carry_out(action)
    gke.snapshot()
    assert gke.carry_out(ReleasePool(action.pool, "u1", 1000)).failure is None
    (pool,) = gke.snapshot().pools
    assert (pool.job_uid, pool.idle_since, pool.namespace) == ("", 1000, "team-a")
    first, second = (ClaimPool(pool.name, pool.etag, labels_of(create(settings, uid))) for uid in ("u2", "u3"))
    assert gke.carry_out(first).failure is None
    lost = gke.carry_out(second).failure
    assert not lost.is_definite
    assert [each.job_uid for each in gke.snapshot().pools] == ["u2"]


def test_a_pool_that_another_job_took_over_is_not_deleted(gke: Gke, settings: Settings, model: GkeModel) -> None:
    action = create(settings)
    gke.carry_out(action)
    assert gke.carry_out(DeletePool(action.pool, "u9")).failure is None
    assert gke.carry_out(DeletePool(action.pool, "")).failure is None
    assert list(model.pools) == [action.pool]


def test_a_pool_that_is_not_ours_is_never_deleted(gke: Gke, model: GkeModel) -> None:
    model.pools["default-pool"] = PoolRecord({"name": "default-pool", "locations": [""], "config": {}}, "RUNNING")
    assert gke.snapshot().pools == ()
    gke.carry_out(DeletePool("default-pool", ""))
    assert list(model.pools) == ["default-pool"]


def test_a_pool_that_cannot_be_labelled_is_deleted_instead(
    gke: Gke, settings: Settings, server: GkeServer, model: GkeModel
) -> None:
    action = create(settings)
    gke.carry_out(action)
    denied = Twist(refuse=("PERMISSION_DENIED", "no container.clusters.update"))
    server.script = lambda call, pool: denied if call == "UpdateNodePool" else None
    assert gke.carry_out(ReleasePool(action.pool, "u1", 1000)).failure is None
    assert gke.snapshot().pools == ()


def test_a_cluster_that_is_not_there_is_said(settings: Settings) -> None:
    failure = Gke(replace(settings, gke_cluster="other")).snapshot().failure
    assert failure.code == "NOT_FOUND"
    assert "clusters/other" in failure.message


def test_one_look_serves_many(settings: Settings, server: GkeServer) -> None:
    gke = Gke(replace(settings, cloud_poll_seconds=60.0))
    for _ in range(50):
        gke.snapshot()
    assert server.calls == {"GetCluster": 1, "ListOperations": 1, "ListNodePools": 1}


def test_labels_keep_to_what_google_allows(settings: Settings) -> None:
    manifest: Any = job_manifest("a-" + "long-" * 12 + "x", accelerator={"type": "v6e-16", "slices": 512})
    manifest["spec"]["training"]["batchSize"] = 8192
    manifest["metadata"]["uid"] = "0f4c6c36-2f0c-4c39-9a53-ff3c1b2d9b11"
    labels = owner_labels(layout_of(parse_job(manifest), settings), SPOT, ZONE, 511)
    for key, value in labels.items():
        assert len(key) <= 63
        assert len(value) <= 63
        assert all(char.islower() or char.isdigit() or char in "-_" for char in key + value)


def test_a_change_for_one_job_makes_only_that_job_look_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gke = Gke(replace(settings, cloud_poll_seconds=1000.0))
    fetches: list[int] = []
    ask = gke._fetch
    monkeypatch.setattr(gke, "_fetch", lambda: fetches.append(1) or ask())
    gke.snapshot("u1")
    gke.carry_out(create(settings, "u1"))
    gke.snapshot("u2")
    assert len(fetches) == 1
    assert [pool.job_uid for pool in gke.snapshot("u1").pools] == ["u1"]
    assert len(fetches) == 2
    gke.snapshot("u1")
    gke.snapshot("u2")
    assert len(fetches) == 2


@pytest.mark.filterwarnings("ignore:Unrecognized")
@pytest.mark.parametrize("status", [*container.NodePool.Status, 99])
@pytest.mark.parametrize("code", [0, container.StatusCondition.Code.GCE_STOCKOUT, 77])
def test_a_pool_is_read_the_same_with_and_without_googles_wrapper(status: int, code: int) -> None:
    marks = {labels.POOL_MANAGER: labels.MANAGER, labels.POOL_JOB_UID: "uid", labels.POOL_SLICE: "3"}
    wrapped = container.NodePool(name="p", status=status, etag="e", config={"resource_labels": marks})
    wrapped.conditions = [{"code": code, "canonical_code": 8, "message": "none left"}]
    plain = container.NodePool.pb(wrapped)
    assert pool_of(plain) == pool_of(wrapped)
    assert is_ours(plain) is is_ours(wrapped) is True


@pytest.mark.filterwarnings("ignore:Unrecognized")
@pytest.mark.parametrize("code", [0, container.StatusCondition.Code.GCE_QUOTA_EXCEEDED])
@pytest.mark.parametrize("status", [container.Operation.Status.DONE, container.Operation.Status.RUNNING, 99])
def test_an_operation_is_read_the_same_with_and_without_googles_wrapper(status: int, code: int) -> None:
    link = "https://container.googleapis.com/v1/projects/p/locations/l/clusters/c/nodePools/p"
    wrapped = container.Operation(name="o", status=status, target_link=link, status_message="no", operation_type=8)
    wrapped.nodepool_conditions = [{"code": code, "canonical_code": 8, "message": "quota"}]
    assert operation_of(container.Operation.pb(wrapped), "c") == operation_of(wrapped, "c")
