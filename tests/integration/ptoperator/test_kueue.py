"""A job in a queue, on an API server with Kueue's own CRDs; this test writes what Kueue's controller would.

The CRDs (Kueue 0.19) stand beside the repository, not in it; a cluster that has Kueue is left alone.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.cluster.operator_process import OperatorProcess
from tests.builders.kueue import objects as made_by_kueue
from tests.integration.ptoperator.test_gke import Site, site, tpu_job  # noqa: F401 (site is a fixture)
from tests.integration.ptoperator.test_jobs import condition

from ptkube.client import Kube
from ptkube.errors import AlreadyExists
from ptkube.resources import ADMISSION_CHECKS, CRDS, JOBSETS, LOCAL_QUEUES, WORKLOADS, Manifest
from ptlocal.kubelet.ports import free_port
from ptoperator.kube import labels

PUBLIC = Path(__file__).resolve().parents[4] / "shared" / "data" / "crds"
QUEUE = "team"
CHECK = "node-pools"

pytestmark = pytest.mark.skipif(not PUBLIC.exists(), reason="the public CRDs are not beside the repository")


@pytest.fixture(scope="module")
def kueue_crds(kube: Kube) -> Iterator[None]:
    made = []
    for plural in (WORKLOADS.plural, LOCAL_QUEUES.plural, ADMISSION_CHECKS.plural):
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
    match = next((each for each in jobs.status(name).conditions if each.type == "QuotaReserved"), None)
    return match.message if match else ""


def test_a_queued_job_says_why_it_waits_is_admitted_evicted_and_comes_back(
    operator: OperatorProcess, kueue_crds: None, jobs: Any
) -> None:
    jobs.wait(lambda: _make_queue(jobs))
    jobs.create("waits", {"FAKE_WAIT": "1"}, queue=QUEUE)
    jobs.wait_phase("waits", "Queued")
    jobset = jobs.kube.get(JOBSETS, "waits", jobs.namespace)
    assert jobset["spec"]["suspend"] is True
    say(jobs, jobset, conditions=[made_by_kueue.pending("insufficient unused quota for cpu")])
    jobs.wait(lambda: "in cluster-queue: insufficient unused quota for cpu" in why(jobs, "waits"))
    admit(jobs, "waits", suspend=False)
    jobs.wait_phase("waits", "Running")
    assert condition(jobs.status("waits"), "QuotaReserved") == ("True", "Admitted")
    evicted = made_by_kueue.condition("Evicted", True, "Preempted", "made room for another")
    say(jobs, jobset, conditions=[evicted, made_by_kueue.pending("no quota")])
    admit(jobs, "waits", suspend=True)
    status = jobs.wait_phase("waits", "Queued")
    assert condition(status, "QuotaReserved") == ("False", "Evicted")
    assert "revoked the quota (Preempted: made room for another)" in why(jobs, "waits")
    jobs.mark("waits")
    admit(jobs, "waits", suspend=False)
    assert jobs.wait_phase("waits", "Succeeded").failure is None


def test_node_pools_are_made_when_kueue_has_reserved_quota_and_asks_for_them(
    control_plane: Any,
    kueue_crds: None,
    kube: Kube,
    jobs: Any,
    site: Site,  # noqa: F811
    tmp_path: Path,
) -> None:
    jobs.wait(lambda: _make_queue(jobs) and _make_check(kube))
    operator = OperatorProcess(control_plane.kubeconfig, tmp_path, jobs.namespace, free_port(), site.env())
    operator.start()
    try:
        jobs.wait(lambda: _is_active(kube))
        tpu_job(jobs, "pooled", [{"type": "spot", "zones": ["us-east5-b"]}], queue=QUEUE)
        jobs.wait_phase("pooled", "Queued")
        jobset = kube.get(JOBSETS, "pooled", jobs.namespace)
        say(jobs, jobset, conditions=[made_by_kueue.pending("no quota")], admissionChecks=[_check("Pending")])
        jobs.wait(lambda: "in cluster-queue: no quota" in why(jobs, "pooled"))
        assert site.model.made == []
        reserved = made_by_kueue.condition("QuotaReserved", True, "QuotaReserved", "Quota reserved")
        say(jobs, jobset, conditions=[reserved], admissionChecks=[_check("Pending")])
        jobs.wait(lambda: _answer(jobs)["state"] == "Ready", shown=lambda: jobs.status("pooled"))
        assert jobs.status("pooled").phase == "Provisioning"
        (update,) = _answer(jobs)["podSetUpdates"]
        assert [each["value"] for each in update["tolerations"]] == sorted(site.model.made)
        assert len(site.model.made) == 2
        _admit_with(jobs, update)
        assert jobs.wait_phase("pooled", "Succeeded").failure is None
        jobs.wait(lambda: not site.model.ours(), shown=lambda: site.model.pools)
    finally:
        operator.kill()
        kube.delete(ADMISSION_CHECKS, CHECK)
    assert "Traceback" not in operator.log.read_text()


def _make_check(kube: Kube) -> bool:
    body = {
        "apiVersion": ADMISSION_CHECKS.api_version,
        "kind": ADMISSION_CHECKS.kind,
        "metadata": {"name": CHECK},
        "spec": {"controllerName": labels.POOLS_CHECK},
    }
    kube.create(ADMISSION_CHECKS, body)
    return True


def _is_active(kube: Kube) -> bool:
    conditions = (kube.get(ADMISSION_CHECKS, CHECK).get("status") or {}).get("conditions") or []
    return [(each["type"], each["status"]) for each in conditions] == [("Active", "True")]


def _check(state: str) -> Manifest:
    return {"name": CHECK, "state": state, "message": "", "lastTransitionTime": made_by_kueue.TIME}


def _answer(jobs: Any) -> Manifest:
    """What the operator said to Kueue's check."""
    (workload,) = jobs.kube.list(WORKLOADS, jobs.namespace).items
    (check,) = workload["status"]["admissionChecks"]
    answer: Manifest = check
    return answer


def _admit_with(jobs: Any, update: Manifest) -> None:
    """As Kueue does: what the check says comes into the JobSet's template, and the JobSet runs."""
    jobset = jobs.kube.get(JOBSETS, "pooled", jobs.namespace)
    (replicated,) = jobset["spec"]["replicatedJobs"]
    assert replicated["name"] == update["name"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    pod["nodeSelector"] |= update["nodeSelector"]
    pod["tolerations"] += update["tolerations"]
    jobs.kube.replace(JOBSETS, {**jobset, "spec": {**jobset["spec"], "suspend": False}})


def _make_queue(jobs: Any) -> bool:
    """As soon as the API server serves the kind."""
    try:
        jobs.kube.create(LOCAL_QUEUES, made_by_kueue.local_queue(QUEUE, jobs.namespace, "cluster-queue"))
    except AlreadyExists:
        pass
    except Exception:
        return False
    return True
