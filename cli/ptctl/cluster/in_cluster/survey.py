"""What a cluster has of what posttrain needs: versions, controllers, queues, and who manages them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ptctl.cluster.in_cluster.apply import manager_of
from ptctl.cluster.in_cluster.objects import NAMESPACE, OPERATOR
from ptkube.client import Kube
from ptkube.errors import Forbidden, NotFound
from ptkube.resources import CRDS, DEPLOYMENTS, JOBSETS, POSTTRAINJOBS, WORKLOADS, Manifest, Resource
from ptoperator.kube import labels

MIN_KUBERNETES = (1, 30)
MIN_JOBSET = (0, 10)
MIN_KUEUE = (0, 15)
JOBSET_URL = "https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml"
KUEUE_URL = "https://github.com/kubernetes-sigs/kueue/releases/download/v0.19.2/manifests.yaml"
_CONTROLLERS = {
    "jobset": ("jobset-system", "jobset-controller-manager"),
    "kueue": ("kueue-system", "kueue-controller-manager"),
}


@dataclass(frozen=True)
class Controller:
    """A controller. version: its image's tag, or empty. ready and wanted: numbers of pods."""

    name: str
    namespace: str
    version: str
    ready: int
    wanted: int
    manager: str = ""

    @property
    def is_ready(self) -> bool:
        """Return True if at least one pod is."""
        return self.ready > 0


@dataclass(frozen=True)
class Survey:
    """What is installed. crds: definitions by name; operator and controllers: None where there is none."""

    kubernetes: str
    crds: dict[str, Manifest]
    operator: Controller | None
    jobset: Controller | None
    kueue: Controller | None

    @property
    def has_jobset(self) -> bool:
        """Return True if JobSets can be made."""
        return _crd_name(JOBSETS) in self.crds

    @property
    def jobset_crd(self) -> Manifest | None:
        """Return JobSet's definition."""
        return self.crds.get(_crd_name(JOBSETS))

    @property
    def has_kueue(self) -> bool:
        """Return True if Kueue's kinds are served."""
        return _crd_name(WORKLOADS) in self.crds

    @property
    def is_operator_of_others(self) -> bool:
        """Return True if ptctl did not install the operator: Helm manages it, or it has another name or namespace."""
        operator = self.operator
        if operator is None:
            return False
        return bool(operator.manager or (operator.namespace, operator.name) != (NAMESPACE, OPERATOR))

    @property
    def our_crd(self) -> Manifest | None:
        """Return our own definition."""
        return self.crds.get(_crd_name(POSTTRAINJOBS))


def survey(kube: Kube) -> Survey:
    """Return what the cluster has."""
    definitions = {each["metadata"]["name"]: each for each in kube.list(CRDS).items}
    return Survey(
        kubernetes=str(kube.request("GET", "/version").get("gitVersion") or ""),
        crds=definitions,
        operator=find_operator(kube),
        jobset=_controller(kube, *_CONTROLLERS["jobset"]),
        kueue=_controller(kube, *_CONTROLLERS["kueue"]),
    )


def find_operator(kube: Kube) -> Controller | None:
    """Return the operator, under whatever release name and namespace; ptctl's own first."""
    try:
        deployments = kube.list(DEPLOYMENTS, labels=f"{labels.NAME}=posttrain").items
    except Forbidden:
        return _controller(kube, NAMESPACE, OPERATOR)
    operators = [each for each in deployments if _component(each) == "operator"]  # not the TensorBoards
    ours = sorted(operators, key=lambda each: each["metadata"]["namespace"] != NAMESPACE)
    return _view(ours[0]) if ours else None


def version_of(text: str) -> tuple[int, int] | None:
    """Return major and minor of `v1.34.1-gke.1829001` or an image's tag; None if there are none."""
    match = re.search(r"v?(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def _controller(kube: Kube, namespace: str, name: str) -> Controller | None:
    try:
        return _view(kube.get(DEPLOYMENTS, name, namespace))
    except (NotFound, Forbidden):
        return None


def _view(deployment: Manifest) -> Controller:
    image = str(deployment["spec"]["template"]["spec"]["containers"][0].get("image") or "")
    return Controller(
        name=deployment["metadata"]["name"],
        namespace=deployment["metadata"]["namespace"],
        version=image.partition("@")[0].rpartition(":")[2],
        ready=int((deployment.get("status") or {}).get("readyReplicas") or 0),
        wanted=int(deployment["spec"].get("replicas") or 1),
        manager=manager_of(deployment),
    )


def _component(deployment: Manifest) -> str:
    selector: dict[str, str] = deployment["spec"]["selector"].get("matchLabels") or {}
    return selector.get(labels.COMPONENT, "")


def _crd_name(r: Resource) -> str:
    return f"{r.plural}.{r.group}"
