"""What the doctor says of Google's side, against the APIs of this process, and of one job."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.builders.gke.model import ClusterRecord, PoolRecord

from ptapi.accelerators import resolve
from ptctl.cluster.cloud.compute import open_compute
from ptctl.cluster.cloud.gke import open_gke
from ptctl.cluster.cloud.settings import CloudSettings
from ptctl.cluster.doctor import google as checks
from ptctl.cluster.doctor import queues, versions
from ptctl.cluster.doctor.finding import CheckContext, Google, Severity
from ptctl.cluster.doctor.job import explanation
from ptctl.cluster.in_cluster.objects import GkeCluster
from ptctl.cluster.in_cluster.survey import Controller, Survey
from ptctl.jobs.view import view
from ptkube.client import Kube

Invoke = Callable[..., Any]
NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
PERMISSIONS = "/v1/projects/p:testIamPermissions"
REGION = "/compute/v1/projects/p/regions/us-east5"
RESERVATION = "/compute/v1/projects/p/zones/us-east5-a/reservations/team"


def context(google: Any, **question: Any) -> CheckContext:
    settings = CloudSettings.from_env()
    google.model.cluster = google.model.cluster or ClusterRecord({"name": "c"})
    cluster = open_gke(settings).get("projects/p/locations/us-east5/clusters/c")
    assert cluster is not None
    side = Google(cluster, GkeCluster("p", "us-east5", "c"), open_compute(settings))
    return CheckContext(cast(Kube, None), cast(Any, None), "default", side, **question)


def test_a_bucket_is_tried_from_pods_alone(invoke: Invoke) -> None:
    for words in (("--bucket", "gs://lab"), ("--bucket", "file:///b", "--from-pods")):
        refused = invoke("cluster", "doctor", *words)
        assert (refused.code, "accepted: gs://BUCKET/PATH, with --from-pods" in refused.err) == (2, True), refused.err


def test_permissions_that_lack_are_named(google: Any) -> None:
    google.compute.answers[PERMISSIONS] = lambda body: {"permissions": body["permissions"][:-2]}
    (finding,) = checks.permissions(context(google))
    assert finding.severity is Severity.WARNING
    assert finding.message == "in project p you lack compute.resourcePolicies.create, iam.serviceAccounts.actAs"
    google.compute.answers[PERMISSIONS] = lambda body: body
    assert next(checks.permissions(context(google))).severity is Severity.OK


def test_a_cluster_without_workload_identity_and_a_broken_pool_are_told(google: Any) -> None:
    there = context(google)
    pool = PoolRecord({"name": "tpus", "locations": [], "config": {}}, "ERROR", "Insufficient quota to satisfy")
    google.model.pools["tpus"] = pool
    identity, broken = checks.cluster(context(google))
    assert there.google is not None
    assert (identity.severity, "--workload-pool=p.svc.id.goog" in identity.fix) == (Severity.ERROR, True)
    assert broken.message.startswith("node pool tpus: ")


@pytest.mark.parametrize(("limit", "severity"), [(64, Severity.OK), (48, Severity.WARNING)])
def test_a_quota_that_is_too_small_for_the_chips_says_how_many_are_free(
    google: Any, limit: float, severity: Severity
) -> None:
    quotas = [{"metric": "TPU_V6E", "limit": limit, "usage": 32}, {"metric": "CPUS", "limit": 1, "usage": 1}]
    google.compute.there[REGION] = {"quotas": quotas}
    (finding,) = checks.quota(context(google, chips=resolve("v6e-16", slices=2)))
    assert (finding.severity, f"TPU_V6E in us-east5: {limit - 32} of {limit} free" in finding.message) == (
        severity,
        True,
    )


def test_a_type_whose_quota_google_does_not_list_there_is_told(google: Any) -> None:
    google.compute.there[REGION] = {"quotas": []}
    (finding,) = checks.quota(context(google, chips=resolve("tpu7x-128")))
    assert finding.severity is Severity.WARNING
    assert "no quota of tpu7x among those of us-east5" in finding.message


@pytest.mark.parametrize(
    ("body", "severity", "words"),
    [
        (None, Severity.ERROR, "team does not exist in us-east5-a of project p"),
        ({"status": "CREATING"}, Severity.ERROR, "team is CREATING"),
        ({"status": "READY"}, Severity.WARNING, "does not say how much"),
        (
            {"status": "READY", "specificReservation": {"count": "8", "inUseCount": "5"}},
            Severity.WARNING,
            "3 of 8 hosts",
        ),
        ({"status": "READY", "aggregateReservation": {"hostCount": "8", "inUseHostCount": "4"}}, Severity.OK, "4 of 8"),
    ],
)
def test_the_state_of_a_reservation(google: Any, body: Any, severity: Severity, words: str) -> None:
    if body is not None:
        google.compute.there[RESERVATION] = body
    examined = context(google, chips=resolve("v6e-16"), reservation="team", zone="us-east5-a")
    (finding,) = checks.reservation(examined)
    assert (finding.severity, words in finding.message) == (severity, True), finding.message


def lines(job: Any) -> dict[str, str]:
    return dict(explanation(view(job), NOW))


QUOTA = {
    "type": "QuotaReserved",
    "status": "False",
    "reason": "WaitingForQuota",
    "message": "waiting for 64 v5p chips, 2 ahead",
    "lastTransitionTime": "2026-01-01T00:58:00Z",
}
OPTIONS = [{"type": "reservation"}, {"type": "spot"}]


def test_a_job_in_a_queue_says_behind_whom(make_job: Callable[..., Any]) -> None:
    text = lines(make_job(phase="Queued", conditions=[QUOTA]))
    assert text["Waits for"] == "QuotaReserved (WaitingForQuota, 2m): waiting for 64 v5p chips, 2 ahead"


def test_a_job_whose_model_is_being_staged_says_so(make_job: Callable[..., Any]) -> None:
    skipped = {
        "type": "Preflighted",
        "status": "False",
        "reason": "Skipped",
        "message": "CPU devices need no preflight",
    }
    staging = QUOTA | {"type": "Staged", "reason": "Staging", "message": "copying hf://org/m into the bucket"}
    text = lines(make_job(phase="Preflight", conditions=[staging, skipped]))
    assert text["Waits for"] == "Staged (Staging, 2m): copying hf://org/m into the bucket"


def test_a_job_without_chips_says_what_was_tried_and_what_comes_next(make_job: Callable[..., Any]) -> None:
    attempts = [{"option": "reservation in us-east5-a", "started": "2026-01-01T00:50:00Z"}]
    job = make_job(phase="Provisioning", spec={"capacity": OPTIONS}, capacity={"attempts": attempts})
    assert lines(job)["Tried"] == "reservation in us-east5-a, 10m ago: in progress"
    assert lines(job)["Next"] == "spot, when reservation is refused or not there in time"
    later = {"attempts": attempts, "retryAfter": "2026-01-01T01:02:00Z"}
    again = make_job(phase="Provisioning", spec={"capacity": OPTIONS}, capacity=later)
    assert lines(again)["Next"] == "`capacity` is tried from its beginning in 2m"


@pytest.mark.parametrize(
    ("kind", "words"),
    [("ConfigError", "the same job would fail again"), ("Unknown", "its restarts are used up"), ("New", "used up")],
)
def test_a_job_that_failed_says_whether_another_try_helps(make_job: Callable[..., Any], kind: str, words: str) -> None:
    text = lines(make_job(phase="Failed", failure={"failureClass": kind, "message": "why"}))
    assert (text["Failed"], words in text["Next"]) == (f"{kind}: why", True)


def test_a_job_that_no_operator_has_seen(make_job: Callable[..., Any]) -> None:
    job = make_job()
    job["status"] = {}
    job["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    assert lines(job)["Waits for"] == "an operator: none has handled it yet"


def test_the_explanation_as_json_and_of_a_job_that_is_not_there(
    invoke: Invoke, kube: Any, make_job: Callable[..., Any]
) -> None:
    from ptkube.resources import POSTTRAINJOBS

    kube.put(POSTTRAINJOBS, make_job("a", "Suspended"))
    text = json.loads(invoke("cluster", "doctor", "a", "-o", "json").out)
    assert text["explanation"][-1] == {"subject": "next", "text": "nothing until `ptctl workload resume a`"}
    assert invoke("cluster", "doctor", "b").code == 3


V1BETA2 = {"apiVersion": "config.kueue.x-k8s.io/v1beta2"}


@pytest.mark.parametrize(
    ("version", "config", "timeout"),
    [
        ("v0.18.2", {}, None),
        ("v0.18.2", {"waitForPodsReady": {"enable": True}}, "5m"),
        ("v0.18.2", {"waitForPodsReady": {"enable": False, "timeout": "5m"}}, None),
        ("v0.19.0", {}, "30m"),
        ("v0.19.0", {"waitForPodsReady": {"enable": False}}, None),
        ("v0.19.0", V1BETA2 | {"waitForPodsReady": {"timeout": "5m"}}, "5m"),
        ("v0.19.0", V1BETA2 | {"waitForPodsReady": {"blockAdmission": True}}, "30m"),
        ("", {}, None),
    ],
)
def test_kueues_limit_for_pods_is_that_of_its_version(
    version: str, config: dict[str, Any], timeout: str | None
) -> None:
    kueue = Controller("kueue-controller-manager", "kueue-system", version, 1, 1)
    assert queues.pods_ready_timeout(config, kueue) == timeout


@pytest.mark.parametrize(
    ("wait", "levels", "words"),
    [
        ({}, ["OK"], "are not ready after 30m"),
        ({"recoveryTimeout": "3m"}, ["OK", "WARNING"], "that miss a pod for 3m"),
        ({"recoveryTimeout": "0s"}, ["OK"], "are not ready after 30m"),
        ({"blockAdmission": True}, ["OK", "WARNING"], "one job at a time"),
        ({"requeuingStrategy": {"backoffLimitCount": 1}}, ["OK", "OK"], "late 1 time "),
    ],
)
def test_the_doctor_reads_all_of_kueues_limits_for_pods(wait: dict[str, Any], levels: list[str], words: str) -> None:
    findings = list(queues._pods_ready_limits("30m", wait))
    assert [each.severity.name for each in findings] == levels
    assert words in findings[-1].message


@pytest.mark.parametrize(("field", "level"), [("schedulingGroup", "OK"), ("hostname", "WARNING")])
def test_gangs_need_a_jobset_that_lets_pods_name_them(field: str, level: str) -> None:
    served = SimpleNamespace(request=lambda verb, path: {"resources": [{"name": "podgroups"}]})
    crds = {"jobsets.jobset.x-k8s.io": {"spec": {"properties": {field: {"type": "object"}}}}}
    context = CheckContext(cast(Kube, served), Survey("v1.37.0", crds, None, None, None), "default")
    (finding,) = versions._gangs(context)
    assert (finding.severity.name, "PodGroup" in finding.message) == (level, True)


SLICE_CHECK = {"metadata": {"name": "slices"}, "spec": {"controllerName": "accelerator.gke.io/slice"}}
IS_ACTIVE = {"status": {"conditions": [{"type": "Active", "status": "True"}]}}


@pytest.mark.parametrize(
    ("phase", "crds", "checks", "messages"),
    [
        ("Succeeded", {}, [], []),
        ("Queued", {queues.SLICES_CRD: {}}, [{**SLICE_CHECK, **IS_ACTIVE}], []),
        ("Queued", {}, [SLICE_CHECK], ["slice controller is not enabled", "slices is not active: nobody forms slices"]),
        ("Queued", {queues.SLICES_CRD: {}}, [], ["no AdmissionCheck of Kueue has them formed"]),
    ],
)
def test_dynamic_slices_need_whoever_forms_them(
    make_job: Callable[..., Any], phase: str, crds: dict[str, Any], checks: list[Any], messages: list[str]
) -> None:
    job = make_job("waits", phase, spec={"accelerator": {"type": "tpu7x-128", "dynamicSlicing": True}})
    lists = {"PostTrainJob": [job, make_job("other", "Queued")], "AdmissionCheck": checks}
    client = SimpleNamespace(list=lambda kind: SimpleNamespace(items=lists[kind.kind]))
    context = CheckContext(cast(Kube, client), Survey("v1.36.0", crds, None, None, None), "default")
    findings = [each.message for each in queues._dynamic_slices(context)]
    assert len(findings) == len(messages)
    assert all(words in finding for words, finding in zip(messages, findings, strict=True))


def test_a_queue_that_sends_jobs_elsewhere_and_one_that_stops_preflight_are_named() -> None:
    group = {"coveredResources": ["google.com/tpu"]}
    checked = {"resourceGroups": [group], "admissionChecksStrategy": {"admissionChecks": [{"name": "far"}]}}
    lists: dict[str, list[Any]] = {
        "ClusterQueue": [{"metadata": {"name": "all"}, "spec": checked}],
        "AdmissionCheck": [{"metadata": {"name": "far"}, "spec": {"controllerName": "kueue.x-k8s.io/multikueue"}}],
        "PostTrainJob": [],
        "LocalQueue": [],
    }
    config = {"data": {"controller_manager_config.yaml": "manageJobsWithoutQueueName: true"}}
    client = SimpleNamespace(
        list=lambda kind: SimpleNamespace(items=lists[kind.kind]), get=lambda kind, name, namespace: config
    )
    crds: dict[str, Any] = {"workloads.kueue.x-k8s.io": {}}
    context = CheckContext(cast(Kube, client), Survey("v1.36.0", crds, None, None, None), "default")
    warnings = [each.message for each in queues.check(context) if each.severity.name == "WARNING"]
    assert [words.split(" (")[0] for words in warnings] == [
        "ClusterQueue all sends jobs to other clusters",
        "Kueue keeps Jobs without a queue from starting",
    ]
