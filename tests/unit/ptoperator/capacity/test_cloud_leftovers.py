"""Node pools when others interfere: labels that a user edits, a GKE that may not be asked any more, an operator that
was away. No pool that is paid for goes untold, and none goes under a run."""

from dataclasses import replace
from typing import Any

import pytest
from google.api_core import exceptions
from tests.builders.gke.model import PoolRecord
from tests.builders.operator.cloud_site import Site, jobset
from tests.builders.operator.world import NAMESPACE

from ptkube.client import ListResult
from ptkube.errors import Forbidden
from ptkube.resources import POSTTRAINJOBS, Manifest, Resource
from ptoperator.controller.orphan_collector import OrphanCollector
from ptoperator.kube import labels

NO_RIGHT = exceptions.PermissionDenied("The caller does not have permission")  # type: ignore[no-untyped-call]
DISABLED = (
    "Kubernetes Engine API has not been used in project 123 before or it is disabled. Enable it by visiting "
    "https://console.developers.google.com/apis/api/container.googleapis.com/overview?project=123 then retry."
)


def running(site: Site, **policy: Any) -> PoolRecord:
    """A job runs on a pool of its own."""
    site.provision(runPolicy=policy)
    site.run_with_nodes(30)
    (pool,) = site.model.pools.values()
    return pool


def sweep(site: Site) -> None:
    OrphanCollector(site.world.api, site.gke, site.settings, [NAMESPACE], lambda: site.world.api.now).collect()


def lock_out(site: Site) -> None:
    """GKE refuses to say anything."""

    def refuse(call: str, is_after: bool) -> None:
        raise NO_RIGHT

    site.client._strike = refuse


def capacity(site: Site) -> tuple[str, str, str]:
    """The condition that tells of chips."""
    (match,) = (each for each in site.status().conditions if each.type == "CapacityReady")
    return match.status, match.reason, match.message


def test_a_pool_whose_job_label_a_user_takes_away_is_not_swept_from_under_the_run(site: Site) -> None:
    pool = running(site)
    del pool.labels[labels.POOL_JOB_UID]
    pool.etag += 1
    sweep(site)
    assert pool.state == "RUNNING"
    site.finish()
    site.run(60)
    sweep(site)
    site.run(60)
    assert site.model.listed() == []


def test_a_pool_that_is_not_known_as_ours_any_more_is_left_and_told(site: Site) -> None:
    pool = running(site)
    pool.labels.clear()
    site.finish()
    site.run(60)
    sweep(site)
    words = f"node pool {pool.name} is left without this job's labels; hint: delete that node pool"
    assert capacity(site) == ("False", "NotReleased", words)
    site.run(600)
    assert capacity(site)[2] == words


def test_a_pool_whose_labels_are_changed_while_it_is_made_did_not_go_away_by_itself(site: Site) -> None:
    site.create()
    site.run(10)
    (pool,) = site.model.pools.values()
    pool.labels[labels.POOL_SLICE] = "7"
    site.run_until(lambda: jobset(site))
    assert f"node pool {pool.name} exists, but its labels were changed" in site.outcomes()[0]
    assert len(site.model.pools) == 1


def test_a_job_that_is_over_says_so_of_its_chips_too(site: Site) -> None:
    running(site)
    site.finish()
    site.run(120)
    assert capacity(site) == ("False", "Released", "the node pools are released")


def test_chips_that_cannot_be_had_are_not_said_to_be_tried(site: Site) -> None:
    site.client._strike = lambda call, is_after: lock_create(call)
    site.create()
    site.run_until(lambda: site.status().phase == "Failed")
    status, reason, message = capacity(site)
    assert (status, reason) == ("False", "ConfigError")
    assert "hint: gcloud services enable container.googleapis.com" in message


def lock_create(call: str) -> None:
    if call == "create_node_pool":
        raise exceptions.PermissionDenied(DISABLED)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("end", ["deleted", "suspended", "over"])
def test_pools_that_stay_because_gke_cannot_be_asked_are_told(site: Site, end: str) -> None:
    pool = running(site)
    lock_out(site)
    if end == "deleted":
        site.world.api.delete(POSTTRAINJOBS, "llama", NAMESPACE)
    elif end == "suspended":
        suspend: Manifest = {"spec": {"runPolicy": {"suspend": True}}}
        site.world.api.patch(POSTTRAINJOBS, "llama", NAMESPACE, suspend)
    else:
        site.finish()
    site.run(60)
    status, reason, message = capacity(site)
    assert (status, reason) == ("False", "ReleaseRefused")
    assert message.startswith(f"node pool {pool.name} is being released, but GKE cannot be queried: PERMISSION_DENIED")
    assert not any("no chips" in each.message for each in site.status().conditions)
    site.client._strike = lambda call, is_after: None
    site.run(120)
    assert site.model.listed() == []
    if end == "suspended":
        assert capacity(site)[2] == "runPolicy.suspend is true; no pods, no chips"


def test_a_deleted_job_whose_operator_knows_no_gke_any_more_says_what_it_waits_for(site: Site) -> None:
    pool = running(site)
    site.operator.cloud = None
    site.operator.settings = replace(site.settings, gke_project="", gke_location="", gke_cluster="")
    site.operator.restart()
    site.world.api.delete(POSTTRAINJOBS, "llama", NAMESPACE)
    site.run(60)
    assert f"node pool {pool.name} cannot be deleted, because no GKE cluster is configured" in capacity(site)[2]
    assert labels.FINALIZER in capacity(site)[2]


def test_a_pool_that_comes_to_be_after_its_job_was_deleted_is_swept(site: Site) -> None:
    """The answer to the create is lost, and GKE does not list the pool for a minute."""
    listed_from = [float("inf")]

    def lose(call: str, is_after: bool) -> None:
        now = site.world.api.now.timestamp()
        if call == "create_node_pool" and is_after:
            listed_from[0] = now + 60
            raise exceptions.ServiceUnavailable("Socket closed")  # type: ignore[no-untyped-call]
        if call == "get_node_pool" and now < listed_from[0]:
            raise exceptions.NotFound("Not found")  # type: ignore[no-untyped-call]

    client = site.client
    client._strike, list_pools = lose, client.list_node_pools

    def late(**request: Any) -> Any:
        response = list_pools(**request)
        if site.world.api.now.timestamp() < listed_from[0]:
            response.node_pools = []
        return response

    client.list_node_pools = late
    site.create()
    site.run(10)
    site.world.api.delete(POSTTRAINJOBS, "llama", NAMESPACE)
    site.run_until(lambda: site.job() is None)
    assert len(site.model.pools) == 1
    site.run(60)
    sweep(site)
    site.run(60)
    assert site.model.listed() == []


def test_a_job_of_a_namespace_that_goes_is_found_although_nothing_was_heard_of_it(site: Site) -> None:
    running(site)
    site.world.api.delete(POSTTRAINJOBS, "llama", NAMESPACE)
    leaving: list[tuple[str, str]] = []
    surroundings = (site.world.api, site.gke, site.settings, [NAMESPACE], lambda: site.world.api.now)
    OrphanCollector(*surroundings, on_leaving=leaving.append).collect()
    assert leaving == [(NAMESPACE, "llama")]


def test_a_namespace_that_may_not_be_read_keeps_its_pools_and_no_others(site: Site) -> None:
    pool = running(site)
    orphan = {**pool.labels, labels.POOL_NAMESPACE: "team-b", labels.POOL_JOB_UID: "gone"}
    manifest: Manifest = {"name": "orphan", "locations": [""], "config": {"resource_labels": orphan}}
    site.model.pools["orphan"] = PoolRecord(manifest, state="RUNNING")
    site.world.tick(60)

    class Lister:
        def list(self, r: Resource, namespace: str | None = None) -> ListResult:
            if namespace == NAMESPACE:
                raise Forbidden(403, "Forbidden", "the role went with its namespace")
            return ListResult([], "1")

    OrphanCollector(Lister(), site.gke, site.settings, [NAMESPACE, "team-b"], lambda: site.world.api.now).collect()
    assert [each.name for each in site.model.listed() if each.state != "STOPPING"] == [pool.name]


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (65, "Failed")])
def test_an_operator_that_was_away_for_an_hour_ends_what_ended_and_gives_the_chips_back(
    site: Site, code: int, phase: str
) -> None:
    running(site, ttlSecondsAfterFinished=120)
    for pod in site.world.unfinished:
        site.world.exit(pod, code)
    for _ in range(60):
        site.world.run_jobsets()
        site.world.tick(60)
    site.operator.restart()
    site.run(60)
    assert site.status().phase == phase
    site.run(180)
    assert site.job() is None
    assert site.model.listed() == []
