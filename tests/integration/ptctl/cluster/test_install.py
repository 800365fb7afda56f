"""`ptctl cluster install` and `adapt` on an API server: all there once, whatever broke; nothing of others changed."""

import io
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.cluster.manifests import eventually
from tests.integration.ptctl.cluster.conftest import Api

from ptctl.cli import root
from ptctl.cluster.doctor import queues
from ptctl.cluster.doctor.finding import CheckContext
from ptctl.cluster.in_cluster.apply import Applier
from ptctl.cluster.in_cluster.objects import GkeCluster, Values, all_objects, operator_objects
from ptctl.cluster.in_cluster.survey import survey
from ptctl.errors import CliError
from ptctl.ui.app import App
from ptctl.ui.console import Console
from ptctl.ui.exit_codes import report
from ptkube.client import Kube
from ptkube.errors import NotFound
from ptkube.resources import CONFIGMAPS, CRDS, DEPLOYMENTS, NAMESPACES, POSTTRAINJOBS, SERVICE_ACCOUNTS

PUBLIC = Path(__file__).resolve().parents[5] / "shared" / "data" / "crds"
IMAGES = ("--image", "r/operator:1", "--trainer-image", "r/trainer:1")
VALUES = Values("r/operator:1", "r/trainer:1", GkeCluster("p", "us-east5", "tpus"))


class Killed(BaseException):
    """The program ends here."""


class Struck(Kube):
    """A client whose request number `at` never gets its answer; None: all do."""

    def __init__(self, kube: Kube, at: int | None, *, is_after: bool) -> None:
        super().__init__(kube.access)
        self.calls, self._at, self._is_after = 0, at, is_after

    def _json(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self._at and not self._is_after:
            raise Killed
        answer = super()._json(*args, **kwargs)
        if self.calls == self._at:
            raise Killed
        return answer


@pytest.fixture
def empty(api_server: Api) -> Iterator[Api]:
    """Nothing of ours is there, before and after."""
    remove(api_server.kube)
    yield api_server
    remove(api_server.kube)


def remove(kube: Kube, bodies: list[dict[str, Any]] | None = None) -> None:
    applier = Applier(kube)
    gone = all_objects(VALUES) if bodies is None else bodies
    for body in reversed(gone):
        with suppress(NotFound, CliError):
            kube.delete(applier.resource(body), body["metadata"]["name"], body["metadata"].get("namespace"))
    for body in gone:
        eventually(lambda body=body: applier._read(applier.resource(body), body) is None)


def ptctl(api: Api, *words: str) -> tuple[int, str, str]:
    return run_verb(*words, "--kubeconfig", str(api.kubeconfig))


def run_verb(*words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a verb in this process."""
    out, err = io.StringIO(), io.StringIO()
    app = App(Console(out, err, {}))
    try:
        code = root.main(list(words), prog_name="ptctl", standalone_mode=False, obj=app)
    except BaseException as error:
        code = report(error, app.console)
    return code if isinstance(code, int) else 0, out.getvalue(), err.getvalue()


def outcomes(text: str) -> set[str]:
    return {line.split("   ")[-1].strip() for line in text.splitlines()[1:]}


def test_everything_is_there_and_a_second_run_changes_nothing(empty: Api) -> None:
    code, first, err = ptctl(empty, "cluster", "install", *IMAGES)
    assert (code, outcomes(first)) == (0, {"created"}), err
    deployment = empty.kube.get(DEPLOYMENTS, "posttrain-operator", "posttrain-system")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "r/operator:1"
    assert "POSTTRAIN_GKE_CLUSTER" not in {each["name"] for each in container["env"]}  # no context of GKE
    code, second, _ = ptctl(empty, "cluster", "install", *IMAGES)
    assert (code, outcomes(second)) == (0, {"unchanged"})
    code, third, _ = ptctl(empty, "cluster", "install", "--image", "r/operator:2", "--trainer-image", "r/trainer:1")
    assert [
        line.split()[:2] for line in third.splitlines() if line.endswith("changed") and "unchanged" not in line
    ] == [["Deployment", "posttrain-operator"]]


@pytest.mark.parametrize("is_after", [False, True], ids=["before a request", "before its answer"])
def test_killed_anywhere_and_run_again(empty: Api, is_after: bool) -> None:
    _, namespace, *rest = operator_objects(VALUES)  # the CRD and the namespace go too slowly for a loop
    bodies = [each for each in rest if each["kind"] in ("ServiceAccount", "ClusterRoleBinding", "Deployment")]
    apply_all(empty.kube, [namespace])
    whole = Struck(empty.kube, None, is_after=False)
    apply_all(whole, bodies)
    for at in range(1, whole.calls + 1):
        remove(empty.kube, bodies)
        with suppress(Killed):
            apply_all(Struck(empty.kube, at, is_after=is_after), bodies)
        apply_all(empty.kube, bodies)
        assert set(apply_all(empty.kube, bodies)) == {"unchanged"}, at


def apply_all(kube: Kube, bodies: list[dict[str, Any]]) -> list[str]:
    applier = Applier(kube)
    return [applier.apply(body).outcome for body in bodies]


def test_what_helm_installed_is_refused_and_adapt_leaves_it(empty: Api) -> None:
    bodies = operator_objects(VALUES)
    apply_all(empty.kube, bodies)
    mark = {"meta.helm.sh/release-name": "posttrain", "meta.helm.sh/release-namespace": "posttrain-system"}
    name, namespace = "posttrain-operator", "posttrain-system"
    empty.kube.patch(DEPLOYMENTS, name, namespace, {"metadata": {"annotations": mark}})
    before = empty.kube.get(DEPLOYMENTS, name, namespace)
    code, out, err = ptctl(empty, "cluster", "install", "--image", "r/other:1", "--trainer-image", "r/trainer:1")
    assert (code, out) == (1, "")
    assert "posttrain is installed in posttrain-system by Helm release posttrain" in err
    code, out, err = ptctl(empty, "cluster", "adapt", "--image", "r/other:1", "--trainer-image", "r/trainer:1")
    assert code == 0, err
    line = next(line for line in err.splitlines() if line.startswith("posttrain"))
    assert line.split("   ")[-1].strip() == "posttrain-system Helm release posttrain"
    assert empty.kube.get(DEPLOYMENTS, name, namespace) == before


def test_an_object_of_somebody_else_is_left_alone_and_named(empty: Api) -> None:
    account = {"metadata": {"name": "posttrain-operator", "namespace": "posttrain-system"}}
    account["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "terraform"}
    empty.kube.create(NAMESPACES, {"metadata": {"name": "posttrain-system"}})
    empty.kube.create(SERVICE_ACCOUNTS, account)
    _, out, _ = ptctl(empty, "cluster", "install", *IMAGES)
    line = next(line for line in out.splitlines() if line.startswith("ServiceAccount"))
    assert line.split() == ["ServiceAccount", "posttrain-operator", "left", "alone", "terraform"]


def test_kueue_is_not_fetched_unasked(empty: Api) -> None:
    code, out, err = ptctl(empty, "cluster", "install", *IMAGES, "--quota", "v6e-16=2")
    assert (code, out) == (1, "")
    assert "--quota: Kueue is not installed in this cluster, and is no part of posttrain" in err
    assert "hint: --kueue-manifests https://github.com/kubernetes-sigs/kueue/releases/" in err


@pytest.mark.skipif(not PUBLIC.exists(), reason="the public CRDs are not beside the repository")
def test_kueues_manifests_and_queues_are_applied_where_they_are_named(empty: Api, kueue: Path) -> None:
    words = ("--kueue-manifests", str(kueue), "--quota", "v6e-16=2", "--quota", "v5p-128=1")
    code, out, err = ptctl(empty, "cluster", "install", *IMAGES, *words)
    assert (code, outcomes(out)) == (0, {"created"}), err
    assert {"ClusterQueue", "LocalQueue", "ResourceFlavor"} <= {line.split()[0] for line in out.splitlines()}
    code, out, err = ptctl(empty, "cluster", "install", *IMAGES, *words[2:])
    assert (code, outcomes(out)) == (0, {"unchanged"}), err


@pytest.mark.skipif(not PUBLIC.exists(), reason="the public CRDs are not beside the repository")
def test_the_doctor_finds_queues_that_admit_nothing(empty: Api, kueue: Path) -> None:
    ptctl(empty, "cluster", "install", *IMAGES, "--kueue-manifests", str(kueue), "--quota", "v6e-16=2")
    queue = empty.kube.get(queues.CLUSTER_QUEUES, "posttrain")
    stopped = {"type": "Active", "status": "False", "reason": "Stopped", "message": "no flavor"}
    since = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    empty.kube.replace_status(queues.CLUSTER_QUEUES, {**queue, "status": {"conditions": [{**stopped, **since}]}})
    job: dict[str, Any] = {"metadata": {"name": "waits", "namespace": "default"}, "spec": {"queue": "team-a"}}
    job["spec"] |= {"model": {"uri": "random://tiny"}, "algorithm": {"sft": {}}, "output": {"uri": "gs://lab/runs"}}
    job["spec"] |= {"data": {"train": {"uri": "gs://lab/t.jsonl"}}, "accelerator": {"type": "v6e-16"}}
    empty.kube.create(POSTTRAINJOBS, job)
    empty.kube.create(NAMESPACES, {"metadata": {"name": "kueue-system"}})
    config = {"controller_manager_config.yaml": "waitForPodsReady: {enable: true, timeout: 5m}"}
    meta = {"name": "kueue-manager-config", "namespace": "kueue-system"}
    empty.kube.create(CONFIGMAPS, {"metadata": meta, "data": config})
    try:
        messages = [each.message for each in queues.check(CheckContext(empty.kube, survey(empty.kube), "default"))]
    finally:
        empty.kube.delete(POSTTRAINJOBS, "waits", "default")
        empty.kube.delete(NAMESPACES, "kueue-system")
    assert messages == [
        "ClusterQueue posttrain admits nothing: no flavor",
        "job default/waits waits for LocalQueue team-a, which does not exist there",
        "Kueue evicts jobs whose pods are not ready after 5m (waitForPodsReady)",
    ]


@pytest.fixture
def kueue(empty: Api, tmp_path: Path) -> Iterator[Path]:
    """Kueue's definitions as a release has them in one file; they go with what was made of them."""
    definitions = []
    for plural in ("resourceflavors", "clusterqueues", "localqueues", "admissionchecks", "workloads"):
        crd = yaml.load((PUBLIC / f"kueue.x-k8s.io_{plural}.yaml").read_text(), yaml.CSafeLoader)
        crd["spec"].pop("conversion", None)  # Kueue's own webhook is not here
        crd["spec"]["versions"] = [each for each in crd["spec"]["versions"] if each["name"] == "v1beta2"]
        definitions.append(crd)
    path = tmp_path / "kueue.yaml"
    path.write_text(yaml.dump_all(definitions, Dumper=yaml.CSafeDumper))
    yield path
    for crd in definitions:
        with suppress(NotFound):
            empty.kube.delete(CRDS, crd["metadata"]["name"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--quota", "v6e-16"), "--quota: 'v6e-16'; accepted: TYPE=SLICES"),
        (("--quota", "cpu-8=1"), "--quota: 'cpu-8' has no chips"),
        (("--quota", "v6e-17=1"), "--quota"),
        (("--kueue-manifests", "http://example.com/x.yaml"), "accepted: a file, or an https address"),
        (("--kueue-manifests", "/nowhere.yaml"), "--kueue-manifests: /nowhere.yaml: No such file"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_applied(empty: Api, words: tuple[str, ...], message: str) -> None:
    code, out, err = ptctl(empty, "cluster", "install", *IMAGES, *words)
    assert (code, out, message in err) == (2, "", True), err
    with pytest.raises(NotFound):
        empty.kube.get(NAMESPACES, "posttrain-system")
