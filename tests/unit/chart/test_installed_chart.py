"""What `ptctl cluster install` applies is what Helm would, for the values that it fills in."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptapi.accelerators import resolve
from ptctl.cluster.in_cluster.objects import GkeCluster, Quota, Values, network_objects, operator_objects, queue_objects

helm = pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this platform")

from scripts import make_install  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
PLAIN = Values("r/posttrain-operator:1", "r/posttrain-trainer:1")
ON_GKE = Values(
    "r/posttrain-operator:1",
    "r/posttrain-trainer:1",
    GkeCluster("p", "us-east5", "tpus"),
    operator_account="operator@p.iam",
    node_account="nodes@p.iam",
    gpu_trainer_image="r/posttrain-trainer:1-cuda",
    gpu_networks="gvnic-1=v/s, rdma-0=w/t",
)
CHART_VALUES = {
    "image": {"repository": "r/posttrain-operator", "tag": "1"},
    "trainer": {"image": "r/posttrain-trainer:1"},
}
GKE_VALUES = {
    **CHART_VALUES,
    "gke": {"project": "p", "location": "us-east5", "cluster": "tpus", "nodeServiceAccount": "nodes@p.iam"},
    "gpu": {"trainerImage": "r/posttrain-trainer:1-cuda", "networks": ["gvnic-1=v/s", "rdma-0=w/t"]},
    "serviceAccount": {"annotations": {"iam.gke.io/gcp-service-account": "operator@p.iam"}},
}


def test_the_rendered_chart_is_the_one_that_make_crds_writes() -> None:
    assert make_install.TARGET.read_text() == make_install.rendered()


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """Without who manages it."""
    copied: dict[str, Any] = json.loads(json.dumps(body))
    for holder in (copied, (copied.get("spec") or {}).get("template") or {}):
        marks = (holder.get("metadata") or {}).get("labels") or {}
        marks.pop("app.kubernetes.io/managed-by", None)
        marks.pop("helm.sh/chart", None)
        if holder.get("metadata") and not marks:
            holder["metadata"].pop("labels", None)
    return copied


@pytest.mark.parametrize(
    ("values", "chart_values"), [(PLAIN, CHART_VALUES), (ON_GKE, GKE_VALUES)], ids=["plain", "GKE"]
)
def test_the_objects_are_those_that_helm_renders(values: Values, chart_values: dict[str, Any]) -> None:
    chart = helm.Chart.load(str(ROOT / "charts" / "posttrain"))
    rendered = chart.render(
        {**chart_values, "crds": {"install": False}}, name="posttrain", namespace="posttrain-system"
    )
    documents = [each for name, text in rendered.items() if name.endswith(".yaml") for each in yaml.safe_load_all(text)]
    helms = {(each["kind"], each["metadata"]["name"]): plain(each) for each in documents if each}
    ours = {(each["kind"], each["metadata"]["name"]): plain(each) for each in operator_objects(values)}
    added = {("CustomResourceDefinition", "posttrainjobs.posttrain.dev"), ("Namespace", "posttrain-system")}
    assert {key: body for key, body in ours.items() if key not in added} == helms
    assert added <= set(ours)


def test_the_networks_of_gpus_are_named_for_pods_in_the_mode_of_their_nics() -> None:
    bodies = [(each["kind"], each["metadata"]["name"], each["spec"]) for each in network_objects(ON_GKE)]
    assert [each[:2] for each in bodies[:2]] == [("GKENetworkParamSet", "gvnic-1"), ("Network", "gvnic-1")]
    modes = {name: (spec["vpc"], spec["vpcSubnet"], spec["deviceMode"]) for _, name, spec in bodies[::2]}
    assert modes == {"gvnic-1": ("v", "s", "NetDevice"), "rdma-0": ("w", "t", "RDMA")}
    assert {spec["parametersRef"]["name"] for _, _, spec in bodies[1::2]} == {"gvnic-1", "rdma-0"}
    assert network_objects(PLAIN) == []


def test_queues_cover_every_type_and_pathways_heads_and_ask_the_operator_for_pools() -> None:
    quotas = (Quota(resolve("v6e-16", slices=2)), Quota(resolve("v5p-128")))
    made = queue_objects(Values("a", "b", GkeCluster("p", "l", "c"), quotas=quotas, queue_namespaces=("x", "y")))
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for body in made:
        by_kind.setdefault(body["kind"], []).append(body)
    (queue,) = by_kind["ClusterQueue"]
    chips, heads = queue["spec"]["resourceGroups"]
    assert [(each["name"], each["resources"][0]["nominalQuota"]) for each in chips["flavors"]] == [
        ("v6e-16", 32),
        ("v5p-128", 64),
    ]
    assert heads["coveredResources"] == ["cpu", "memory"]
    assert queue["spec"]["admissionChecksStrategy"]["admissionChecks"] == [{"name": "posttrain-node-pools"}]
    assert by_kind["AdmissionCheck"][0]["spec"] == {"controllerName": "posttrain.dev/node-pools"}
    assert [each["metadata"]["namespace"] for each in by_kind["LocalQueue"]] == ["x", "y"]
    assert by_kind["ResourceFlavor"][0]["spec"]["nodeLabels"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    assert queue_objects(ON_GKE) == []
