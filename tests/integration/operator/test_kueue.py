"""A job in a queue, on an API server with Kueue's own CRDs; this test writes what Kueue's controller would.

The CRDs (Kueue 0.19) stand beside the repository, not in it; a cluster that has Kueue is left alone.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from operatorprocess import OperatorProcess
from test_jobs import condition

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "builders"))

import kueue as made_by_kueue

from ptoperator.apierrors import AlreadyExists
from ptoperator.kube import Kube
from ptoperator.resources import CRDS, JOBSETS, LOCAL_QUEUES, WORKLOADS, Manifest

PUBLIC = Path(__file__).resolve().parents[4] / "shared" / "data" / "crds"
QUEUE = "team"

pytestmark = pytest.mark.skipif(not PUBLIC.exists(), reason="the public CRDs are not beside the repository")


@pytest.fixture(scope="module")
def kueue_crds(kube: Kube) -> Iterator[None]:
    made = []
    for plural in (WORKLOADS.plural, LOCAL_QUEUES.plural):
        text = (PUBLIC / f"kueue.x-k8s.io_{plural}.yaml").read_text()
        crd = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        crd["spec"].pop("conversion", None)  # Kueue's own webhook is not here
        crd["spec"]["versions"] = [each for each in crd["spec"]["versions"] if each["name"] == WORKLOADS.version]
        try:
            made.append(kube.create(CRDS, crd)["metadata"]["name"])
        except AlreadyExists:
            pytest.skip("the cluster has Kueue")
    yield
    for name in made:
        kube.delete(CRDS, name)


def say(jobs: Any, jobset: Manifest, **status: Any) -> None:
    """Kueue makes the Workload, or changes what it says of it."""
    wanted = made_by_kueue.workload(jobset, QUEUE, **status)
    try:
        created = jobs.kube.create(WORKLOADS, {**wanted, "status": {}})
    except AlreadyExists:
        created = jobs.kube.get(WORKLOADS, wanted["metadata"]["name"], jobs.namespace)
    jobs.kube.replace_status(WORKLOADS, {**created, "status": copy.deepcopy(wanted["status"])})


def admit(jobs: Any, name: str, suspend: bool) -> None:
    jobs.kube.patch(JOBSETS, name, jobs.namespace, {"spec": {"suspend": suspend}})


def why(jobs: Any, name: str) -> str:
    found = next((each for each in jobs.status(name).conditions if each.type == "QuotaReserved"), None)
    return found.message if found else ""


def test_a_queued_job_says_why_it_waits_is_admitted_evicted_and_comes_back(
    operator: OperatorProcess, kueue_crds: None, jobs: Any
) -> None:
    jobs.wait(lambda: _make_queue(jobs), 30)
    jobs.create("waits", {"FAKE_WAIT": "1"}, queue=QUEUE)
    jobs.wait_phase("waits", "Queued")
    jobset = jobs.kube.get(JOBSETS, "waits", jobs.namespace)
    assert jobset["spec"]["suspend"] is True
    say(jobs, jobset, conditions=[made_by_kueue.pending("insufficient unused quota for cpu")])
    jobs.wait(lambda: "in cluster-queue: insufficient unused quota for cpu" in why(jobs, "waits"), 30)
    admit(jobs, "waits", suspend=False)
    jobs.wait_phase("waits", "Running")
    assert condition(jobs.status("waits"), "QuotaReserved") == ("True", "Admitted")
    evicted = made_by_kueue.condition("Evicted", True, "Preempted", "made room for another")
    say(jobs, jobset, conditions=[evicted, made_by_kueue.pending("no quota")])
    admit(jobs, "waits", suspend=True)
    status = jobs.wait_phase("waits", "Queued")
    assert condition(status, "QuotaReserved") == ("False", "Evicted")
    assert "took the quota back (Preempted: made room for another)" in why(jobs, "waits")
    (jobs.runs / "waits" / "finish").touch()
    admit(jobs, "waits", suspend=False)
    assert jobs.wait_phase("waits", "Succeeded").failure is None


def _make_queue(jobs: Any) -> bool:
    """As soon as the API server serves the kind."""
    try:
        jobs.kube.create(LOCAL_QUEUES, made_by_kueue.local_queue(QUEUE, jobs.namespace, "cluster-queue"))
    except AlreadyExists:
        pass
    except Exception:
        return False
    return True
