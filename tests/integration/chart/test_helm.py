"""Jobs outlive their release: Helm installs, upgrades, rolls back and uninstalls, and the garbage collector is at work.

Lines of helm that begin with `helm.typed` are those of docs/guides/install.md and upgrade.md. Nothing runs Deployments
here: the operator is started and stopped by hand where Helm makes and deletes its Deployment, with its environment.
"""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.cluster.api_access import Cluster, find
from tests.builders.cluster.fake_jobs import Jobs
from tests.builders.cluster.manifests import eventually
from tests.builders.cluster.operator_process import OperatorProcess
from tests.builders.helm_command import CHART, CRD, Helm, Refused, typed_lines

from ptapi.crd.definition import crd
from ptkube.client import Kube
from ptkube.resources import CONFIGMAPS, CRDS, DEPLOYMENTS, JOBSETS, NAMESPACES, POSTTRAINJOBS, SERVICE_ACCOUNTS
from ptoperator.kube.labels import FINALIZER

HOME = "posttrain-system"
INSTALL = (
    f"helm install posttrain charts/posttrain --namespace {HOME} --create-namespace"
    " --set image.repository=REGISTRY/posttrain-operator --set trainer.image=REGISTRY/posttrain-trainer:0.1.0"
)
UPGRADE = f"helm upgrade posttrain charts/posttrain --namespace {HOME} --reset-then-reuse-values"
UNINSTALL = f"helm uninstall posttrain --namespace {HOME}"
ROLLBACK = f"helm rollback posttrain --namespace {HOME}"
OTHER = "helm install other charts/posttrain --namespace other-system --create-namespace"
ENDLESS = {"FAKE_WAIT": "1", "FAKE_STEPS": "1"}
Manifest = dict[str, Any]


@pytest.fixture(params=[True, False], ids=["server-side", "client-side"])
def helm(request: pytest.FixtureRequest, control_plane: Cluster, kube: Kube) -> Helm:
    """As Helm 4 applies, and as Helm 3 did."""
    return Helm(control_plane.kubeconfig, is_server_side=request.param)


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """The next version of the chart: its CRD has one field more, `spec.invented`."""
    chart = tmp_path / "newer"
    shutil.copytree(CHART, chart)
    file = chart / "files" / "posttrain.dev_posttrainjobs.yaml"
    definition = yaml.safe_load(file.read_text())
    _spec(definition)["invented"] = {"type": "string"}
    file.write_text(yaml.safe_dump(definition))
    head = chart / "Chart.yaml"
    head.write_text(head.read_text().replace("version: 0.1.0", "version: 0.2.0", 1))
    return chart


def _spec(definition: Manifest) -> Manifest:
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    fields: Manifest = schema["properties"]["spec"]["properties"]
    return fields


def start(operator: OperatorProcess, kube: Kube, tmp_path: Path) -> None:
    """As its Deployment would."""
    container = kube.get(DEPLOYMENTS, "posttrain-operator", HOME)["spec"]["template"]["spec"]["containers"][0]
    env = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    operator.env = env | {"POSTTRAIN_PROGRESS_SECONDS": "0.5"}
    operator.start()
    operator.wait_ready()


def uids(kube: Kube, jobs: Jobs, name: str) -> dict[str, str]:
    """Of the CRD, the job, and everything made for it that is not on its way out."""
    objects = [
        kube.get(CRDS, CRD),
        kube.get(POSTTRAINJOBS, name, jobs.namespace),
        kube.get(JOBSETS, name, jobs.namespace),
    ]
    objects += [each for each in kube.list(CONFIGMAPS, jobs.namespace).items if name in each["metadata"]["name"]]
    objects += jobs.pods(name)
    return {
        f"{each['kind']} {each['metadata']['name']}": each["metadata"]["uid"]
        for each in objects
        if "deletionTimestamp" not in each["metadata"]
    }


def collect_garbage(kube: Kube, namespace: str) -> None:
    """Until the collector has taken something that was written after all that came before."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "00000000-0000-4000-8000-000000000000"}
    kube.create(CONFIGMAPS, {"metadata": {"name": "orphan", "namespace": namespace, "ownerReferences": [owner]}})
    eventually(lambda: find(kube, CONFIGMAPS, "orphan", namespace) is None)


def uid_of_crd(kube: Kube) -> str:
    collect_garbage(kube, "default")
    return str(kube.get(CRDS, CRD)["metadata"]["uid"])


def kubectl(cluster: Cluster, line: str, **values: str) -> None:
    """A line of the page, with values for its capitals."""
    assert line in typed_lines()
    done = cluster.kubectl(*(values.get(word, word) for word in shlex.split(line)[1:]))
    assert done.returncode == 0, done.stderr


def account(kube: Kube, name: str) -> Manifest:
    return kube.get(SERVICE_ACCOUNTS, name, HOME)


def test_a_job_trains_on_through_uninstall_and_the_next_release_adopts_it(
    helm: Helm, kube: Kube, jobs: Jobs, operator: OperatorProcess, tmp_path: Path
) -> None:
    helm.typed(INSTALL)
    start(operator, kube, tmp_path)
    jobs.create("long", ENDLESS)
    jobs.wait_phase("long", "Running")
    before = uids(kube, jobs, "long")
    assert len(before) == 5  # CRD, job, JobSet, ConfigMap, pod

    helm.typed(UNINSTALL)
    assert operator.stop() == 0
    assert find(kube, DEPLOYMENTS, "posttrain-operator", HOME) is None
    collect_garbage(kube, jobs.namespace)
    assert uids(kube, jobs, "long") == before

    helm.typed(INSTALL)
    step = jobs.status("long").progress.step
    start(operator, kube, tmp_path)
    jobs.wait(lambda: (jobs.status("long").progress.step or 0) > (step or 0), shown=lambda: jobs.status("long"))
    assert uids(kube, jobs, "long") == before
    jobs.mark("long")
    assert jobs.wait_phase("long", "Succeeded").restarts == {}


def test_upgrade_brings_the_crd_of_its_chart_or_leaves_the_one_there_and_the_jobs_stay(
    helm: Helm, kube: Kube, jobs: Jobs, newer: Path
) -> None:
    helm.typed(INSTALL)
    jobs.create("waiting")
    uid = kube.get(POSTTRAINJOBS, "waiting", jobs.namespace)["metadata"]["uid"]

    def job() -> Manifest:
        """It is there, and the same."""
        collect_garbage(kube, jobs.namespace)
        current = kube.get(POSTTRAINJOBS, "waiting", jobs.namespace)
        assert current["metadata"]["uid"] == uid
        return current

    helm.typed(UPGRADE, chart=newer)
    kube.patch(POSTTRAINJOBS, "waiting", jobs.namespace, {"spec": {"invented": "here"}})
    assert job()["spec"]["invented"] == "here"
    helm.typed(f"{UPGRADE} --set crds.install=false")
    assert job()["spec"]["invented"] == "here"
    helm.typed(ROLLBACK)  # to the newer chart
    assert job()["spec"]["invented"] == "here"
    helm.typed(ROLLBACK)  # to the older one without its CRD
    assert job()["spec"]["invented"] == "here"
    helm.typed(UPGRADE, "--set", "crds.install=true")
    kube.patch(POSTTRAINJOBS, "waiting", jobs.namespace, {"metadata": {"labels": {"written": "since"}}})
    assert "invented" not in job()["spec"]


def test_a_job_that_trains_goes_on_through_upgrade_and_rollback_and_is_read_by_the_newer_ptctl(
    control_plane: Cluster, kube: Kube, jobs: Jobs, operator: OperatorProcess, newer: Path, tmp_path: Path
) -> None:
    helm = Helm(control_plane.kubeconfig)
    helm.typed(INSTALL)
    start(operator, kube, tmp_path)
    jobs.create("long", ENDLESS)
    jobs.wait_phase("long", "Running")
    before = uids(kube, jobs, "long")
    assert validated(control_plane, jobs, "long").startswith("-: job 'long' is valid")
    for change in (lambda: helm.typed(UPGRADE, chart=newer), lambda: helm.typed(ROLLBACK)):
        change()
        assert operator.stop() == 0  # as its Deployment replaces the pod
        step = jobs.status("long").progress.step or 0
        start(operator, kube, tmp_path)
        jobs.wait(lambda step=step: (jobs.status("long").progress.step or 0) > step, shown=lambda: jobs.status("long"))
        assert uids(kube, jobs, "long") == before
    jobs.mark("long")
    jobs.wait_phase("long", "Succeeded")


def validated(cluster: Cluster, jobs: Jobs, name: str) -> str:
    """What `ptctl validate` says of a stored job, by the line of the page."""
    line = "kubectl get posttrainjob NAME --namespace NAMESPACE --output yaml | ptctl validate -f -"
    assert line in typed_lines()
    get, check = (shlex.split(part) for part in line.split(" | "))
    values = {"NAME": name, "NAMESPACE": jobs.namespace}
    stored = cluster.kubectl(*(values.get(word, word) for word in get[1:])).stdout
    command = [sys.executable, "-m", *check]
    return subprocess.run(command, input=stored, capture_output=True, text=True, check=True).stdout


def test_rollback_brings_the_older_crd_and_the_jobs_stay(helm: Helm, kube: Kube, jobs: Jobs, newer: Path) -> None:
    helm.typed(INSTALL)
    jobs.create("waiting")
    uid = kube.get(POSTTRAINJOBS, "waiting", jobs.namespace)["metadata"]["uid"]
    helm.typed(UPGRADE, chart=newer)
    assert "invented" in _spec(kube.get(CRDS, CRD))
    helm.typed(ROLLBACK)
    assert "invented" not in _spec(kube.get(CRDS, CRD))
    collect_garbage(kube, jobs.namespace)
    assert kube.get(POSTTRAINJOBS, "waiting", jobs.namespace)["metadata"]["uid"] == uid


@pytest.mark.parametrize("flags", ["--take-ownership", "--set crds.install=false"])
def test_a_release_of_another_name_is_refused_the_crd_until_it_is_told_what_to_do(
    helm: Helm, kube: Kube, jobs: Jobs, flags: str
) -> None:
    helm.typed(INSTALL)
    jobs.create("waiting")
    before = [kube.get(CRDS, CRD), kube.get(POSTTRAINJOBS, "waiting", jobs.namespace)]
    helm.typed(UNINSTALL)
    with pytest.raises(Refused, match=r'invalid ownership metadata.*must equal "other": current value is "posttrain"'):
        helm.run(OTHER)
    assert helm.releases() == []
    helm.typed(f"{OTHER} {flags}")
    is_taken = flags == "--take-ownership"
    collect_garbage(kube, jobs.namespace)
    after = [kube.get(CRDS, CRD), kube.get(POSTTRAINJOBS, "waiting", jobs.namespace)]
    assert [each["metadata"]["uid"] for each in after] == [each["metadata"]["uid"] for each in before]
    owner = after[0]["metadata"]["annotations"]["meta.helm.sh/release-name"]
    assert owner == ("other" if is_taken else "posttrain")
    helm.run("helm uninstall other --namespace other-system")
    assert uid_of_crd(kube) == before[0]["metadata"]["uid"]


@pytest.mark.parametrize("helm", [True], indirect=True, ids=["server-side"])
def test_an_older_crd_of_kubectl_is_taken_over(control_plane: Cluster, helm: Helm, kube: Kube, tmp_path: Path) -> None:
    older = crd()
    del _spec(older)["queue"]
    path = tmp_path / "older.yaml"
    path.write_text(yaml.safe_dump(older))
    assert control_plane.kubectl("apply", "-f", str(path)).returncode == 0
    uid = uid_of_crd(kube)
    with pytest.raises(Refused, match="invalid ownership metadata"):
        helm.typed(INSTALL)
    helm.typed(INSTALL, "--take-ownership", "--force-conflicts")
    assert uid_of_crd(kube) == uid
    assert "queue" in _spec(kube.get(CRDS, CRD))


@pytest.mark.parametrize("helm", [True], indirect=True, ids=["server-side"])
def test_a_job_deleted_without_an_operator_goes_at_once_unless_it_holds_node_pools(
    control_plane: Cluster, helm: Helm, kube: Kube, jobs: Jobs, operator: OperatorProcess, tmp_path: Path
) -> None:
    helm.typed(INSTALL)
    start(operator, kube, tmp_path)
    for name in ("plain", "pooled", "freed"):
        jobs.create(name, ENDLESS)
    for name in ("plain", "pooled", "freed"):
        jobs.wait_phase(name, "Running")
    helm.typed(UNINSTALL)
    assert operator.stop() == 0
    for name in ("pooled", "freed"):
        kube.patch(POSTTRAINJOBS, name, jobs.namespace, {"metadata": {"finalizers": [FINALIZER]}})
    for name in ("plain", "pooled", "freed"):
        jobs.delete(name)

    jobs.wait(lambda: jobs.left("plain") == [], shown=lambda: jobs.left("plain"))
    for name in ("pooled", "freed"):
        assert "deletionTimestamp" in kube.get(POSTTRAINJOBS, name, jobs.namespace)["metadata"]
        assert [pod["status"]["phase"] for pod in jobs.pods(name)] == ["Running"]
    patch = """--type=merge --patch '{"metadata":{"finalizers":null}}'"""
    line = f"kubectl patch posttrainjob NAME --namespace NAMESPACE {patch}"
    kubectl(control_plane, line, NAMESPACE=jobs.namespace, NAME="freed")
    jobs.wait(lambda: jobs.left("freed") == [], shown=lambda: jobs.left("freed"))
    helm.typed(INSTALL)
    start(operator, kube, tmp_path)
    jobs.wait(lambda: jobs.left("pooled") == [], shown=lambda: jobs.left("pooled"))

    jobs.create("last", ENDLESS)
    jobs.wait_phase("last", "Running")
    kubectl(control_plane, "kubectl delete posttrainjobs --all --all-namespaces")
    jobs.wait(lambda: jobs.left("last") == [], shown=lambda: jobs.left("last"))
    helm.typed(UNINSTALL)
    kubectl(control_plane, f"kubectl delete crd {CRD}")
    assert find(kube, CRDS, CRD) is None


@pytest.mark.parametrize("helm", [True], indirect=True, ids=["server-side"])
def test_the_trainers_service_account_needs_a_name_that_no_namespace_has(helm: Helm, kube: Kube) -> None:
    if find(kube, NAMESPACES, HOME) is None:
        kube.create(NAMESPACES, {"metadata": {"name": HOME}})
    default = account(kube, "default")
    with pytest.raises(
        Refused, match=r"trainer.serviceAccount.name: default.*hint: --set trainer.serviceAccount.name="
    ):
        helm.run(f"{INSTALL} --set trainer.serviceAccount.create=true")
    assert helm.releases() == []
    helm.typed(INSTALL, "--set", "trainer.serviceAccount.create=true,trainer.serviceAccount.name=posttrain-trainer")
    assert account(kube, "posttrain-trainer")["automountServiceAccountToken"] is False
    assert account(kube, "default") == default
