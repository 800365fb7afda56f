"""`ptctl cluster doctor` on an API server: what is wrong is found, each with its fix."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from tests.integration.ptctl.cluster.conftest import Api
from tests.integration.ptctl.cluster.test_install import IMAGES, empty, ptctl  # noqa: F401 (empty is a fixture)

from ptctl.cluster.doctor import health, rights
from ptctl.cluster.doctor.examine import examine
from ptctl.cluster.doctor.finding import CheckContext, Finding, Severity
from ptctl.cluster.in_cluster.survey import survey
from ptkube.client import Kube, ListResult
from ptkube.errors import NotFound
from ptkube.resources import CRDS, DEPLOYMENTS, MUTATING_WEBHOOKS, NAMESPACES, PODS, Resource

NAMESPACE = "posttrain-system"
OPERATOR = "posttrain-operator"
WORKLOAD = {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}}}


class Answering(Kube):
    """A client that answers for what the embedded API server has not: authorisers, webhooks and their endpoints."""

    def __init__(
        self, kube: Kube, allows: Callable[[str, str], bool] = lambda user, what: what != "list secrets", **hooks: bool
    ) -> None:
        super().__init__(kube.access)
        self._allows = allows
        self._hooks = hooks

    def list(self, r: Resource, *args: Any, **options: Any) -> ListResult:
        if r is MUTATING_WEBHOOKS:
            return ListResult([_webhook(name) for name in self._hooks], "1")
        if r.plural == "validatingwebhookconfigurations":
            return ListResult([], "1")
        if r.plural == "endpointslices":
            name = options["labels"].rpartition("=")[2]
            return ListResult([{"endpoints": [{"conditions": {"ready": self._hooks[name]}}]}], "1")
        return super().list(r, *args, **options)

    def create(self, r: Resource, body: dict[str, Any], **options: Any) -> dict[str, Any]:
        if r.group != "authorization.k8s.io":
            return super().create(r, body, **options)
        spec = body["spec"]
        attributes = spec["resourceAttributes"]
        what = f"{attributes['verb']} {attributes['resource']}"
        return {"status": {"allowed": self._allows(spec.get("user", "me"), what)}}


def _webhook(name: str) -> dict[str, Any]:
    service = {"name": name, "namespace": "jobset-system"}
    return {"metadata": {"name": name}, "webhooks": [{"name": f"{name}.kb.io", "clientConfig": {"service": service}}]}


@pytest.fixture
def installed(empty: Api) -> Iterator[Kube]:  # noqa: F811 (a fixture)
    """Posttrain and JobSet, ready: nothing runs here, so their status is written."""
    kube = empty.kube
    ptctl(empty, "cluster", "install", *IMAGES)
    kube.create(NAMESPACES, {"metadata": {"name": "jobset-system"}})
    pod = {"containers": [{"name": "m", "image": "r/jobset:v0.12.0"}]}
    spec = {**WORKLOAD, "template": {**WORKLOAD["template"], "spec": pod}}
    controller = {"metadata": {"name": "jobset-controller-manager", "namespace": "jobset-system"}, "spec": spec}
    kube.create(DEPLOYMENTS, controller)
    set_ready(kube, "jobset-controller-manager", "jobset-system", 1)
    set_ready(kube, OPERATOR, NAMESPACE, 2)
    yield kube
    for name, namespace in (("jobset-controller-manager", "jobset-system"),):
        kube.delete(DEPLOYMENTS, name, namespace)
    with suppress(NotFound):
        kube.delete(NAMESPACES, "jobset-system")


def set_ready(kube: Kube, name: str, namespace: str, pods: int) -> None:
    there = kube.get(DEPLOYMENTS, name, namespace)
    kube.replace_status(DEPLOYMENTS, {**there, "status": {"replicas": pods, "readyReplicas": pods}})


def diagnose(kube: Kube) -> list[Finding]:
    return list(examine(CheckContext(kube, survey(kube), "default")))


def bad(findings: list[Finding]) -> list[str]:
    return [f"{each.check}: {each.message}" for each in findings if each.severity is not Severity.OK]


def allowing(kube: Kube) -> Kube:
    return Answering(kube, jobset=True)


def test_a_healthy_cluster_has_no_finding(installed: Kube) -> None:
    findings = diagnose(allowing(installed))
    assert bad(findings) == []
    assert {each.check for each in findings} >= {"versions", "rights", "webhooks", "images", "queues", "clock"}


def test_an_empty_cluster_lacks_posttrain(empty: Api) -> None:  # noqa: F811 (a fixture)
    code, out, _ = ptctl(empty, "cluster", "doctor", "-o", "json")
    fixes = {each["message"]: each["fix"] for each in json.loads(out)["findings"] if each["severity"] == "error"}
    assert code == 1
    assert fixes["no operator is installed"] == "`ptctl cluster install`"
    assert fixes["the CRD posttrainjobs.posttrain.dev is not there"] == "`ptctl cluster install`"
    _, text, _ = ptctl(empty, "cluster", "doctor")
    assert text.splitlines()[0].startswith("error    versions:")


def test_controllers_that_are_old_or_not_ready_are_told(installed: Kube) -> None:
    set_ready(installed, OPERATOR, NAMESPACE, 0)
    image = {"spec": {"template": {"spec": {"containers": [{"name": "m", "image": "r/jobset:v0.8.0"}]}}}}
    installed.patch(DEPLOYMENTS, "jobset-controller-manager", "jobset-system", image)
    assert bad(diagnose(allowing(installed))) == [
        "versions: JobSet v0.8.0: 0.10 or newer is needed",
        "versions: operator 1: no pod of posttrain-system/posttrain-operator is ready",
    ]


def test_a_crd_of_another_version_is_told(installed: Kube) -> None:
    name = "posttrainjobs.posttrain.dev"
    crd = installed.get(CRDS, name)
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["tensorboard"]
    installed.replace(CRDS, crd)
    (finding,) = (each for each in diagnose(allowing(installed)) if each.severity is not Severity.OK)
    assert "is not the one of this ptctl" in finding.message


def test_rights_that_lack_and_one_too_many_are_named(installed: Kube) -> None:
    operator = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"
    denied = {("me", "delete posttrainjobs"), (operator, "create jobsets"), (operator, "delete pods")}
    kube = Answering(installed, lambda user, what: (user, what) not in denied)
    caller, missing, trainer = rights.check(CheckContext(kube, survey(installed), "default"))
    assert caller.message == "you may not delete posttrainjobs in namespace default"
    assert missing.message == f"the operator ({operator}) may not create jobsets, delete pods in namespace default"
    assert (
        trainer.message == "trainers (system:serviceaccount:default:default) may read the Secrets of namespace default"
    )
    assert [each.severity.name for each in (caller, missing, trainer)] == ["WARNING", "ERROR", "WARNING"]


def test_a_webhook_with_nobody_behind_it_is_told(installed: Kube) -> None:
    kube = Answering(installed, jobset=False, kueue=True)
    (finding,) = health.webhooks(CheckContext(kube, survey(kube), "default"))
    assert finding.message == "jobset.kb.io refuses writes: no pod of service jobset-system/jobset is ready"


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ("failed to authorize: 403 Forbidden", "roles/artifactregistry.reader"),
        ("r/trainer:9: not found", "check name and tag"),
        ("dial tcp: i/o timeout", "check that the nodes reach the registry"),
    ],
)
def test_an_image_that_cannot_be_pulled_is_told_once_with_its_reason(installed: Kube, message: str, fix: str) -> None:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": message}}, "image": "r/trainer:9"}
    status = {"phase": "Pending", "containerStatuses": [{"name": "t", "ready": False, "restartCount": 0, **waiting}]}
    for name in ("a", "b"):
        pod = {"containers": [{"name": "t", "image": "r/trainer:9"}]}
        meta = {"name": name, "namespace": "default", "labels": {"app.kubernetes.io/name": "posttrain"}}
        installed.replace_status(PODS, {**installed.create(PODS, {"metadata": meta, "spec": pod}), "status": status})
    try:
        (finding,) = health.images(CheckContext(installed, survey(installed), "default"))
    finally:
        for name in ("a", "b"):
            installed.delete(PODS, name, "default", grace_s=0)
    assert finding.message.startswith("r/trainer:9 cannot be pulled (default/")
    assert fix in finding.fix


def test_a_clock_that_is_off_is_told(installed: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(health.datetime):  # type: ignore[misc, name-defined]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return super().now(tz) - timedelta(minutes=10)

    monkeypatch.setattr(health, "datetime", Late)
    (finding,) = health.clock(CheckContext(installed, survey(installed), "default"))
    assert finding.message.endswith("s behind the cluster's")


def test_a_check_that_cannot_be_made_is_a_finding_and_the_others_go_on(installed: Kube) -> None:
    class Refusing(Answering):
        def list(self, r: Resource, *args: Any, **options: Any) -> Any:
            if r is PODS:
                raise NotFound(403, "Forbidden", "pods is forbidden")
            return super().list(r, *args, **options)

    findings = diagnose(Refusing(installed))
    assert bad(findings) == ["images: could not be checked: pods is forbidden"]
    assert findings[-1].check == "clock"
