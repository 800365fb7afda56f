"""`ptctl cluster create` against a server that speaks GKE's gRPC: whatever is refused, lost, repeated or cut off."""

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from google.cloud import container_v1 as container
from requests import Session
from tests.builders.gke.compute import ComputeServer
from tests.builders.gke.model import ERROR, QUOTA, RUNNING, ZONE_EXHAUSTED, ClusterRecord, Fault, GkeModel, PoolRecord
from tests.builders.gke.server import LOCATION, PROJECT, GkeServer, Twist

from ptapi.accelerators import resolve
from ptctl.cluster.cloud.compute import Compute
from ptctl.cluster.cloud.gke import ClusterView, Gke
from ptctl.cluster.creation import Creation
from ptctl.cluster.definition.requests import requests
from ptctl.cluster.definition.spec import ChipPools, ClusterSpec, capacity_options
from ptctl.cluster.teardown import check_deletable, delete_cluster, networks_left
from ptctl.errors import CliError
from ptctl.ui.console import Console
from ptoperator.capacity.gke.node_pool_api import connect

ZONE = "us-east5-a"
AGAIN = "ptctl cluster create tpus"
SPOT = capacity_options(2, reservation=None, spot=True, flex=False, on_demand=False)
SPEC = ClusterSpec("tpus", PROJECT, LOCATION, (ZONE,), pathways_machine="n2-standard-64")
WITH_TPUS = replace(SPEC, chips=ChipPools(resolve("v6e-16"), ZONE, SPOT))
POOLS = {"cpu-system", "cpu-np", "v6e-16-spot-0", "v6e-16-spot-1"}


class Killed(BaseException):
    """The program ends here."""


class Struck:
    """The real client; its call number `at` is killed before or after the server has it."""

    def __init__(self, client: Any, at: int, *, is_after: bool) -> None:
        self._client, self._at, self._is_after = client, at, is_after
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> Any:
            self.calls += 1
            if self.calls == self._at and not self._is_after:
                raise Killed
            try:
                return getattr(self._client, name)(**arguments)
            finally:
                if self.calls == self._at:
                    raise Killed

        return call


@dataclass
class Site:
    """A GKE whose time passes while ptctl sleeps."""

    now: float = 0.0

    def __post_init__(self) -> None:
        self.model = GkeModel(lambda: self.now, seconds=15.0, cluster=None)
        self.server = GkeServer(self.model)
        self.err = io.StringIO()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 10_000, f"never done:\n{self.err.getvalue()[-2000:]}"

    def create(self, spec: ClusterSpec = WITH_TPUS, client: Any = None, compute: Compute | None = None) -> Any:
        gke = Gke(client or connect(self.server.endpoint))
        compute = compute or Compute("", lambda: pytest.fail("no policy is asked for"))
        console = Console(io.StringIO(), self.err, {})
        return Creation(gke, compute, console, 10.0, self.sleep, lambda: self.now).run(spec, AGAIN)

    def nth(self, at: int, twist: Twist) -> None:
        """Call number `at` from now goes wrong."""
        first = self.server.calls.total()
        self.server.script = lambda call, name: twist if self.server.calls.total() - first == at else None


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    with made.server:
        yield made


def test_a_cluster_and_its_pools_are_made_and_a_second_run_changes_nothing(site: Site) -> None:
    cluster = site.create()
    assert (cluster.state, {pool.name for pool in cluster.pools}) == ("RUNNING", POOLS)
    assert cluster.is_ours
    before = dict(site.server.calls)
    assert site.create().name == "tpus"
    changed = {call for call, count in site.server.calls.items() if count != before[call]}
    assert changed == {"ListOperations", "GetCluster"}


def test_every_request_is_one_that_the_real_protobufs_take_and_is_what_the_dry_run_prints(site: Site) -> None:
    site.create()
    assert [each.name for each in requests(WITH_TPUS)] == ["tpus", "cpu-np", "v6e-16-spot-0", "v6e-16-spot-1"]
    pool = site.model.pools["v6e-16-spot-1"].manifest
    assert (pool["config"]["machine_type"], pool["placement_policy"]["tpu_topology"]) == ("ct6e-standard-4t", "4x4")
    assert pool["config"]["spot"] is True


def test_networks_of_gpus_are_made_before_the_cluster_also_when_google_is_slow_to_make_them(site: Site) -> None:
    on_demand = capacity_options(1, reservation=None, spot=False, flex=False, on_demand=True)
    spec = replace(SPEC, chips=ChipPools(resolve("h200-16"), ZONE, on_demand), gpu_networks="rdma")
    subnets, refused = f"/compute/v1/projects/{PROJECT}/regions/{LOCATION}/subnetworks", []

    def not_ready(method: str, path: str) -> tuple[int, str] | None:
        if (method, path) != ("POST", subnets) or len(refused) == 3:
            return None
        refused.append(path)
        return 400, "The resource 'projects/p/global/networks/tpus-rdma' is not ready"

    with ComputeServer(not_ready) as server:
        site.create(spec, compute=Compute(server.endpoint, Session))
        assert len(refused) == 3
        made = [path for method, path in server.calls if method == "POST"]
        site.create(spec, compute=Compute(server.endpoint, Session))
        assert [path for method, path in server.calls if method == "POST"] == made
        assert server.there[f"{subnets}/tpus-rdma-7"]["ipCidrRange"] == "192.168.184.0/21"
        roce = server.there[f"/compute/v1/projects/{PROJECT}/global/networks/tpus-rdma"]
        assert roce["networkProfile"].endswith(f"/networkProfiles/{ZONE}-vpc-roce")
    assert site.model.pools["h200-16-demand-0"].state == RUNNING
    nodes = container.CreateNodePoolRequest(requests(spec)[-1].body).node_pool
    nics = [nic.subnetwork for nic in nodes.network_config.additional_node_network_configs]
    assert nics == ["tpus-gvnic-1", *(f"tpus-rdma-{nic}" for nic in range(8))]


def test_more_slices_are_added_and_fewer_delete_nothing(site: Site) -> None:
    one = replace(SPEC, chips=ChipPools(resolve("v6e-16"), ZONE, SPOT[:1]))
    site.create(one)
    site.create(WITH_TPUS)
    assert set(site.model.pools) == POOLS
    site.create(one)
    assert set(site.model.pools) == POOLS


FAULTS: dict[str, Twist] = {
    "fails": Twist(refuse=("UNAVAILABLE", "try again")),
    "is throttled": Twist(refuse=("RESOURCE_EXHAUSTED", "Quota exceeded for quota metric 'Read requests' per minute")),
    "loses its answer": Twist(lose_answer=True),
    "comes twice": Twist(repeat=True),
    "is late": Twist(refuse=("DEADLINE_EXCEEDED", "504")),
    "meets another change": Twist(refuse=("FAILED_PRECONDITION", "Cluster is running incompatible operation op-1.")),
}


@cache
def calls_of_a_whole_run() -> int:
    site = Site()
    with site.server:
        site.create()
        return site.server.calls.total()


def check_one_cluster_and_nothing_else(site: Site) -> None:
    assert site.model.clusters_made == ["tpus"]
    assert {name: pool.state for name, pool in site.model.pools.items()} == dict.fromkeys(POOLS, RUNNING)
    assert sorted(site.model.made) == sorted(POOLS - {"cpu-system"})


@pytest.mark.parametrize("fault", FAULTS)
def test_any_request_may_go_wrong(fault: str) -> None:
    for at in range(1, calls_of_a_whole_run() + 1):
        site = Site()
        with site.server:
            site.nth(at, FAULTS[fault])
            site.create()
            check_one_cluster_and_nothing_else(site)


@pytest.mark.parametrize("is_after", [False, True], ids=["before the request", "before its answer"])
def test_killed_anywhere_and_run_again(is_after: bool) -> None:
    for at in range(1, calls_of_a_whole_run() + 1):
        site = Site()
        with site.server:
            with pytest.raises(Killed):
                site.create(client=Struck(connect(site.server.endpoint), at, is_after=is_after))
            site.create()
            check_one_cluster_and_nothing_else(site)


def test_a_cluster_that_google_upgrades_for_long_is_waited_for(site: Site) -> None:
    site.create(SPEC)
    site.model.upgrade(600.0)  # and from then on one change at a time
    site.create()
    check_one_cluster_and_nothing_else(site)


def test_operations_that_vanish_change_nothing(site: Site) -> None:
    site.server.after = lambda call, name: site.model.forget_operations()
    site.create()
    check_one_cluster_and_nothing_else(site)


def test_a_cluster_that_failed_in_an_earlier_run_is_made_anew(site: Site) -> None:
    site.model.cluster_fault = Fault(outcome="Google Compute Engine: Not enough IP space.")
    with pytest.raises(CliError, match="cluster tpus is in ERROR: Google Compute Engine: Not enough IP space"):
        site.create()
    site.create()
    assert site.model.clusters_made == ["tpus", "tpus"]
    assert {pool.state for pool in site.model.pools.values()} == {RUNNING}


def test_a_cluster_that_fails_and_leaves_nothing_is_told_with_its_reason(site: Site) -> None:
    site.model.cluster_fault = Fault(outcome=QUOTA, leaves_nothing=True)
    with pytest.raises(CliError, match=r"cluster tpus: quota TPU_V6E: needs 16, limit 8, short of 8") as refused:
        site.create()
    assert "ask for more of that quota" in refused.value.hint
    assert site.model.clusters_made == ["tpus"]


def out_of_stock(pool: PoolRecord) -> Fault | None:
    return Fault(outcome=ZONE_EXHAUSTED, condition="GCE_STOCKOUT") if pool.name == "v6e-16-spot-1" else None


def test_a_pool_without_chips_is_named_the_others_stay_and_the_next_run_replaces_it(site: Site) -> None:
    site.model.fault_for = out_of_stock
    with pytest.raises(
        CliError, match=r"runs, without 1 of its node pools:\n  node pool v6e-16-spot-1: .*EXHAUSTED"
    ) as e:
        site.create()
    assert e.value.hint == f"fix the reason, then: {AGAIN}"
    assert {name: pool.state for name, pool in site.model.pools.items()} == {
        **dict.fromkeys(POOLS, RUNNING),
        "v6e-16-spot-1": ERROR,
    }
    site.model.fault_for = lambda pool: None
    site.create()
    assert {pool.state for pool in site.model.pools.values()} == {RUNNING}


def test_a_pool_that_is_refused_at_once_leaves_the_others(site: Site) -> None:
    site.model.fault_for = lambda pool: Fault(refuse=("PERMISSION_DENIED", "no")) if pool.name == "cpu-np" else None
    with pytest.raises(CliError, match=r"node pool cpu-np: PERMISSION_DENIED: no\. your account needs") as refused:
        site.create()
    assert set(site.model.pools) == POOLS - {"cpu-np"}
    assert refused.value.code == 1


@pytest.mark.parametrize(
    ("call", "code", "exit_code", "words"),
    [
        ("CreateCluster", "PERMISSION_DENIED", 4, "roles/container.admin"),
        ("ListOperations", "PERMISSION_DENIED", 4, "roles/container.admin"),
        ("GetCluster", "UNAUTHENTICATED", 4, "log in again"),
        ("CreateCluster", "INVALID_ARGUMENT", 1, ""),
    ],
)
def test_what_google_refuses_for_good_ends_at_once_with_a_hint(
    site: Site, call: str, code: str, exit_code: int, words: str
) -> None:
    site.server.script = lambda name, _: Twist(refuse=(code, "no")) if name == call else None
    with pytest.raises(CliError) as refused:
        site.create()
    assert (refused.value.code, refused.value.message) == (exit_code, f"{code}: no")
    assert words in refused.value.hint
    assert site.now < 30


def test_a_google_that_never_answers_is_given_up_and_says_so(site: Site) -> None:
    site.server.script = lambda call, name: Twist(refuse=("UNAVAILABLE", "the service is away"))
    with pytest.raises(CliError, match="UNAVAILABLE: the service is away"):
        site.create()
    assert 200 < site.now < 1000


def test_a_cluster_of_somebody_else_is_left_alone(site: Site) -> None:
    site.model.cluster = ClusterRecord({"name": "tpus", "resource_labels": {"gke_product_type": "xpk"}})
    with pytest.raises(CliError, match="exists in us-east5, and was not made by ptctl") as refused:
        site.create()
    assert "ptctl cluster adapt tpus" in refused.value.hint
    assert site.model.pools == {}


def test_other_flags_are_refused_and_named(site: Site) -> None:
    site.create(SPEC)
    with pytest.raises(CliError, match="made with other flags: --release-channel: it has REGULAR, not RAPID"):
        site.create(replace(SPEC, channel="rapid"))


def test_a_pool_of_the_name_with_another_zone_or_maker_is_refused(site: Site) -> None:
    site.create()
    labels = site.model.pools["v6e-16-spot-0"].labels
    labels["posttrain-shape"] = "another"
    with pytest.raises(
        CliError, match="node pool v6e-16-spot-0 exists with another zone, machine, reservation or networks"
    ):
        site.create()
    labels.clear()
    with pytest.raises(CliError, match="node pool v6e-16-spot-0 exists, and was not made by ptctl"):
        site.create()


def test_the_wait_says_what_for_since_when_and_how_long_still(site: Site) -> None:
    site.model.seconds = 130.0
    site.create(SPEC)
    lines = site.err.getvalue().splitlines()
    assert lines[0] == "create cluster tpus"
    assert "waiting 60s, about 7m left: cluster tpus" in lines
    assert "create node pool cpu-np" in lines


def delete(site: Site) -> None:
    gke = Gke(connect(site.server.endpoint))
    cluster = gke.get(SPEC.path)
    assert cluster is not None
    check_deletable(cluster)
    delete_cluster(gke, SPEC.path, cluster, 10.0, site.sleep)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_deletion_survives_whatever_goes_wrong(fault: str) -> None:
    for at in range(1, 6):
        site = Site()
        with site.server:
            site.create(SPEC)
            site.nth(at + 1, FAULTS[fault])
            delete(site)
            assert site.model.cluster is None


def test_what_ptctl_did_not_make_is_never_deleted(site: Site) -> None:
    site.create()
    site.model.pools["gpus"] = PoolRecord({"name": "gpus", "locations": [], "config": {}}, RUNNING)
    with pytest.raises(CliError, match="cluster tpus has node pools that ptctl did not make: gpus"):
        delete(site)
    site.model.cluster = ClusterRecord({"name": "tpus"})
    with pytest.raises(CliError, match="cluster tpus in us-east5 was not made by ptctl"):
        delete(site)
    assert site.server.calls["DeleteCluster"] == 0


def test_pools_that_the_operator_made_go_with_the_cluster(site: Site) -> None:
    site.create(SPEC)
    config = {"resource_labels": {"posttrain-managed-by": "posttrain"}}
    site.model.pools["job"] = PoolRecord({"name": "job", "locations": [], "config": config}, RUNNING)
    delete(site)
    assert site.model.cluster is None


def test_networks_that_were_made_for_the_gpus_are_named_when_the_cluster_goes() -> None:
    nics = [{"network": f"projects/p/global/networks/{name}"} for name in ("tpus-gpu-2", "tpus-gpu-1", "shared")]
    pool = {"name": "gpus", "network_config": {"additional_node_network_configs": nics}}
    raw = container.Cluster(name="tpus", node_pools=[pool, {"name": "cpu-system"}])
    view = ClusterView("tpus", LOCATION, "RUNNING", "", is_ours=True, spec_hash="", raw=raw)
    assert networks_left(view) == ["tpus-gpu-1", "tpus-gpu-2"]
