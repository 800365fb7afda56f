"""Scripts of a GKE that goes wrong: what the job tries next, says and leaves; and how often GKE is called."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from google.api_core import exceptions
from google.rpc.error_details_pb2 import RetryInfo
from tests.builders.gke.model import Fault, PoolRecord
from tests.builders.operator.cloud_site import SETTINGS, STOCKOUT, Site, jobset
from tests.builders.operator.world import NAMESPACE, World

from ptkube.resources import JOBSETS, POSTTRAINJOBS, Manifest
from ptoperator.capacity.cloud import PoolState
from ptoperator.kube import names

HERE: list[Manifest] = [{"type": "onDemand", "zones": ["us-east5-a"]}]
THEN_SPOT: list[Manifest] = [*HERE, {"type": "spot", "zones": ["us-east5-b"]}]
EXISTS_NOT = "is currently unavailable in the us-east5-a zone. Consider trying your request in the us-east5-b zone."


class Storm:
    """One call fails a number of times, then works. delay_s: RetryInfo. calls: when it was called."""

    def __init__(self, site: Site, call: str, error: type[Exception], words: str, times: int, delay_s: int = 0) -> None:
        self.left, self.calls = times, list[float]()
        self._site, self._call, self._error, self._words, self._delay_s = site, call, error, words, delay_s
        site.client._strike = self

    def __call__(self, call: str, is_after: bool) -> None:
        if call != self._call or is_after:
            return
        self.calls.append(self._site.world.api.now.timestamp())
        if self.left:
            self.left -= 1
            delay = RetryInfo()
            delay.retry_delay.FromSeconds(self._delay_s)
            raise self._error(self._words, details=[delay] if self._delay_s else [])  # type: ignore[call-arg]

    def pauses(self) -> list[float]:
        return [after - before for before, after in zip(self.calls, self.calls[1:], strict=False)]


@pytest.mark.parametrize(
    ("fault", "outcome", "kind"),
    [
        (Fault(leaves_nothing=True), "NODE_POOL_GONE in us-east5-a after 1m", "Unknown"),
        (Fault(outcome="Internal error.", leaves_nothing=True, is_terse=True), "ERROR in us-east5-a after", "Unknown"),
        (replace(STOCKOUT, is_terse=True, condition="", leaves_nothing=True),
         "ZONE_RESOURCE_POOL_EXHAUSTED in us-east5-a after 4m20s, trying spot in us-east5-b", "Stockout"),
        (Fault(refuse=("RESOURCE_EXHAUSTED", f"A ct6e-standard-4t VM instance {EXISTS_NOT}")),
         "RESOURCE_EXHAUSTED in us-east5-a after 0s", "Stockout"),
        (Fault(refuse=("PERMISSION_DENIED", "Quota limit 'TPUV6E' has been exceeded. Limit: 64 in zone us-east5-a.")),
         "quota TPUV6E in zone us-east5-a: more than the limit of 64", "Quota"),
        (Fault(refuse=("FAILED_PRECONDITION", "The request exceeds the project's quota of 32 v6e chips")),
         "quota of 32 v6e chips", "Quota"),
        (Fault(refuse=("INVALID_ARGUMENT", "Specified reservations [r1] do not have available resources.")),
         "do not have available resources", "Reservation"),
        (Fault(outcome="Pool is broken.", condition="", state="ERROR", seconds=20.0), "Pool is broken.", "Unknown"),
    ],
)  # fmt: skip
def test_the_next_option_follows_and_the_outcome_says_why(site: Site, fault: Fault, outcome: str, kind: str) -> None:
    site.faults["us-east5-a"] = fault
    site.provision(capacity=THEN_SPOT)
    first, second = site.status().capacity.attempts
    assert outcome in first.outcome
    assert first.failure_class == kind
    assert second.ready
    assert [pool.zone for pool in site.model.pools.values()] == ["us-east5-b"]


@pytest.mark.parametrize(
    ("call", "error", "words", "times", "most_calls"),
    [
        ("create_node_pool", exceptions.PermissionDenied, 'Required "container.clusters.update" permission(s).', 5, 6),
        ("create_node_pool", exceptions.ResourceExhausted, "Too many requests per minute.", 8, 9),
        ("create_node_pool", exceptions.InternalServerError, "Internal error.", 8, 9),
        ("create_node_pool", exceptions.ServiceUnavailable, "Socket closed", 8, 9),
        ("list_node_pools", exceptions.DeadlineExceeded, "Deadline Exceeded", 8, 40),
        ("list_operations", exceptions.ServiceUnavailable, "Connection reset by peer", 8, 40),
        ("list_node_pools", exceptions.PermissionDenied, 'Required "container.clusters.list" permission(s).', 8, 60),
        ("delete_node_pool", exceptions.FailedPrecondition, "Operation operation-7 is in progress.", 20, 21),
        ("delete_node_pool", exceptions.NotFound, "Not found: nodePools/x.", 1, 3),
        ("get_node_pool", exceptions.InternalServerError, "Internal error.", 8, 30),
    ],
)
def test_what_heals_is_waited_for_and_nothing_is_left(
    site: Site, call: str, error: type[Exception], words: str, times: int, most_calls: int
) -> None:
    storm = Storm(site, call, error, words, times)
    site.provision(capacity=HERE)
    site.finish()
    site.run_until(lambda: site.status().phase == "Succeeded" and not site.model.pools)
    site.world.api.delete(POSTTRAINJOBS, "llama", NAMESPACE)
    site.run_until(lambda: site.job() is None)
    assert storm.left == 0
    assert len(site.model.made) == 1
    assert len(storm.calls) <= most_calls


def test_a_limit_of_calls_is_met_again_by_many_jobs(site: Site) -> None:
    for number in range(12):
        site.create(f"job-{number}", HERE)
    storm = Storm(site, "create_node_pool", exceptions.ResourceExhausted, "Too many requests per minute.", 4, 45)
    site.run(170)
    assert [45 <= each <= 50 for each in storm.pauses()[:3]] == [True] * 3, "one job asks, after as long as GKE said"
    site.run(120)
    assert len(site.model.made) == 12


def test_calls_that_are_limited_without_a_word_are_made_ever_more_seldom(site: Site) -> None:
    storm = Storm(site, "list_node_pools", exceptions.ResourceExhausted, "Too many requests.", 100)
    site.create(capacity=HERE)
    site.run(400)
    assert storm.pauses()[:5] == [10.0, 20.0, 40.0, 60.0, 60.0]
    assert "GKE cannot be queried: RESOURCE_EXHAUSTED: Too many requests." in site.waits_for()


def test_a_cluster_that_is_upgraded_is_contended_for_nothing_until_it_is_done(site: Site) -> None:
    calls = Counter[str]()
    site.client._strike = lambda call, is_after: calls.update([call])
    site.model.upgrade(1200.0)
    for name in ("one", "two", "three"):
        site.create(name, HERE)
    site.run(1000)
    assert calls["create_node_pool"] <= 3
    assert "the cluster is busy: operation-1" in site.waits_for("one")
    site.run_until(lambda: all(jobset(site, name) for name in ("one", "two", "three")))
    assert len(site.model.made) == 3


def test_an_operation_that_gke_forgot_does_not_hold_the_job(site: Site) -> None:
    site.create(capacity=HERE)
    site.run(10)
    (pool,) = site.model.pools.values()
    site.model.operations.clear()
    pool.state, pool.nodes = "RUNNING", 4
    site.run_until(lambda: jobset(site))
    assert site.model.made == [pool.name]


def test_a_status_that_the_client_does_not_know_is_waited_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.create(capacity=HERE)
    site.run(10)
    listed = site.client.list_node_pools

    def strange(**request: Any) -> Any:
        response = listed(**request)
        for pool in response.node_pools:
            pool.status, pool.conditions = 99, [type("Condition", (), {"code": 77, "canonical_code": 0, "message": ""})]
        return response

    monkeypatch.setattr(site.client, "list_node_pools", strange)
    site.run(120)
    assert [pool.state for pool in site.gke.snapshot().pools] == [PoolState.UNKNOWN]
    assert jobset(site) is None
    monkeypatch.undo()
    site.run_until(lambda: jobset(site))


def test_nodes_that_come_late_are_waited_for_in_their_pool(site: Site) -> None:
    site.faults["other"] = Fault(nodes=3)
    site.create(capacity=HERE)
    site.run_with_nodes(600)
    assert "3 of 4 pods have nodes" in site.waits_for()
    (name,) = site.model.pools
    site.model.resize(name, 4)
    site.run_with_nodes(30)
    assert site.status().phase in ("Starting", "Running")
    assert site.model.made == [name]


def test_a_pool_whose_nodes_never_come_is_replaced_although_it_is_the_last_option(site: Site) -> None:
    site.faults["other"] = Fault(nodes=3)
    site.create(capacity=HERE)
    site.run_with_nodes(1700)
    assert len(site.status().capacity.attempts) == 1
    del site.faults["other"]
    site.run_with_nodes(600)
    first, second = site.outcomes()
    assert first.startswith("onDemand in us-east5-a: ready after 1m; then pods had no nodes for 30m")
    assert second.startswith("onDemand in us-east5-a: ready after ")
    assert site.status().phase in ("Starting", "Running")
    assert len(site.model.pools) == 1


def test_a_repair_that_does_not_end_sends_the_next_try_elsewhere(site: Site) -> None:
    site.provision(capacity=[{"type": "spot", "zones": ["us-east5-a"], "waitSeconds": 300}, *HERE])
    site.run_with_nodes(30)
    (name,) = site.model.pools
    site.model.lose_nodes(name, "RECONCILING")
    site.world.api.delete(JOBSETS, "llama", NAMESPACE)  # somebody thinks this helps
    site.faults["spot"] = replace(STOCKOUT, seconds=10.0)
    site.run_with_nodes(900)
    assert "then pods had no nodes for 5m" in site.outcomes()[0]
    assert site.outcomes()[-1].startswith("onDemand in us-east5-a: ready after")


def test_a_pool_that_runs_with_errors_does_not_disturb_the_run_on_it(site: Site) -> None:
    site.provision(capacity=HERE)
    site.run_with_nodes(30)
    (name,) = site.model.pools
    site.model.resize(name, 4, "RUNNING_WITH_ERROR")
    site.run_with_nodes(3000)
    assert site.outcomes() == ["onDemand in us-east5-a: ready after 1m"]
    site.finish()
    site.run_until(lambda: not site.model.pools)


def test_a_pool_that_is_deleted_by_hand_under_a_run_is_made_anew(site: Site) -> None:
    site.provision(capacity=HERE)
    site.run_with_nodes(30)
    (name,) = site.model.pools
    site.model.delete(name)
    for pod in site.world.unfinished:
        site.world.disrupt(pod)
    site.run_with_nodes(600)
    assert "then node pool" in site.outcomes()[0]
    assert site.status().phase in ("Starting", "Running")
    assert site.status().restarts == {"HostError": 1}
    assert len(site.model.pools) == 1


def test_a_pool_that_is_deleted_by_hand_while_it_is_made_is_made_anew_at_once(site: Site) -> None:
    site.create(capacity=HERE)
    site.run(10)
    (name,) = site.model.pools
    site.model.delete(name)
    site.run_until(lambda: jobset(site))
    assert [outcome.rpartition(" after ")[0] for outcome in site.outcomes()] == ["onDemand in us-east5-a: ready"]


def test_two_jobs_of_one_shape_whose_answers_are_lost_get_a_pool_each(site: Site) -> None:
    def lose(call: str, is_after: bool) -> None:
        if call == "create_node_pool" and is_after:
            raise exceptions.ServiceUnavailable("Socket closed")

    site.client._strike = lose
    site.create("one", HERE)
    site.create("two", HERE)
    site.run_until(lambda: jobset(site, "one") and jobset(site, "two"))
    assert len(site.model.made) == len(site.model.pools) == 2
    assert site.model.doubled == []


def test_a_reservation_that_is_full_is_had_when_it_is_free(site: Site) -> None:
    site.faults["other"] = Fault(refuse=("FAILED_PRECONDITION", "Insufficient reserved capacity: 4 needed, 0 free."))
    site.create(capacity=[{"type": "reservation", "reservation": "r1", "zones": ["us-east5-a"]}])
    site.run(300)
    assert all(each.failure_class == "Reservation" for each in site.status().capacity.attempts if each.ended)
    assert len(site.status().capacity.attempts) <= 5
    del site.faults["other"]
    site.run_until(lambda: jobset(site))
    assert len(site.model.pools) == 1


def test_a_pool_of_flex_start_is_not_kept_for_the_next_job(world: World) -> None:
    site = Site(world, replace(SETTINGS, pool_idle_seconds=3600.0))
    site.provision(capacity=[{"type": "flexStart", "zones": ["us-east5-a"]}])
    site.succeed()
    site.run(60)
    assert site.model.pools == {}


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_pool_that_may_not_be_deleted_is_told(site: Site, is_deleted: bool) -> None:
    site.provision(capacity=HERE)
    words = 'Required "container.clusters.update" permission(s).'
    Storm(site, "delete_node_pool", exceptions.PermissionDenied, words, 10)
    if is_deleted:
        site.world.api.delete(POSTTRAINJOBS, "llama", NAMESPACE)
        site.run(40)
    else:
        site.succeed()
        site.run(40)
    (name,) = site.model.pools
    assert site.waits_for().startswith(f"node pool {name} is to be deleted: PERMISSION_DENIED: {words}")
    site.run_until(lambda: not site.model.pools)
    site.run(20)
    if not is_deleted:
        assert site.waits_for() == "the node pools are released"


def test_a_foreign_pool_of_the_same_name_that_goes_away_was_no_reason_to_touch_it(site: Site) -> None:
    site.create(capacity=THEN_SPOT)
    job = site.job()
    name = names.node_pool("llama", job["metadata"]["uid"], 0)
    foreign = PoolRecord({"name": name, "locations": [""], "config": {}}, state="PROVISIONING")
    site.model.pools[name] = foreign
    site.run(60)
    assert site.model.pools[name] is foreign
    assert "belongs to another owner" in site.outcomes()[0]
