"""The chart, rendered and linted by Helm itself (its Go SDK, from a wheel)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptoperator.settings import Settings

helm = pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this platform")

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "posttrain"
Values = dict[str, Any]


def documents(values: Values) -> list[dict[str, Any]]:
    rendered = helm.Chart.load(str(CHART)).render(values, name="pt", namespace="posttrain-system")
    texts = [text for name, text in rendered.items() if name.endswith(".yaml")]
    return [doc for text in texts for doc in yaml.safe_load_all(text) if doc]


def of_kind(values: Values, kind: str) -> list[dict[str, Any]]:
    return [doc for doc in documents(values) if doc["kind"] == kind]


def rules(values: Values) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind in ("Role", "ClusterRole"):
        for role in of_kind(values, kind):
            if "-jobs-" not in role["metadata"]["name"]:
                yield from ((kind, rule) for rule in role["rules"])


def test_helm_lint_finds_nothing() -> None:
    report = helm.lint(str(CHART), strict=True)
    assert report["errors"] in (None, [], "")


def test_chart_carries_the_generated_crd() -> None:
    generated = ROOT / "manifests" / "crds" / "posttrain.dev_posttrainjobs.yaml"
    assert of_kind({}, "CustomResourceDefinition") == [yaml.safe_load(generated.read_text())]
    assert of_kind({"crds": {"install": False}}, "CustomResourceDefinition") == []


def test_no_rule_has_a_wildcard() -> None:
    assert [rule for _, rule in rules({}) for word in rule["verbs"] + rule["resources"] if "*" in word] == []


def test_preflights_jobs_may_be_made_read_and_deleted_and_nothing_else() -> None:
    found = [rule for _, rule in rules({}) if rule["apiGroups"] == ["batch"]]
    assert found == [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "create", "delete"]}]


def test_listed_namespaces_get_roles_instead_of_cluster_wide_rights() -> None:
    values = {"namespaces": ["team-a", "team-b"]}
    assert [role["metadata"]["namespace"] for role in of_kind(values, "Role")] == ["team-a", "team-b"]
    cluster_groups = {group for kind, rule in rules(values) if kind == "ClusterRole" for group in rule["apiGroups"]}
    assert cluster_groups == {"apiextensions.k8s.io", ""}
    cluster_resources = {r for kind, rule in rules(values) if kind == "ClusterRole" for r in rule["resources"]}
    assert cluster_resources == {"customresourcedefinitions", "namespaces"}


def test_operator_pod_meets_the_restricted_standard() -> None:
    pod = of_kind({}, "Deployment")[0]["spec"]["template"]["spec"]
    container = pod["containers"][0]["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["allowPrivilegeEscalation"] is False
    assert container["readOnlyRootFilesystem"] is True
    assert container["capabilities"] == {"drop": ["ALL"]}


def test_one_operator_at_a_time() -> None:
    spec = of_kind({}, "Deployment")[0]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_digest_wins_over_tag() -> None:
    digest = "sha256:" + "a" * 64
    image = {"repository": "r.example/op", "tag": "v1", "digest": digest}
    container = of_kind({"image": image}, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == f"r.example/op@{digest}"


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"nmaespaces": ["a"]}, "nmaespaces"),
        ({"logLevel": "loud"}, "logLevel"),
        ({"image": {"repository": "x", "digest": "latest"}}, "digest"),
        ({"progressSeconds": 0}, "progressSeconds"),
    ],
)
def test_wrong_values_are_refused_by_name(values: Values, word: str) -> None:
    with pytest.raises(Exception, match=word):
        documents(values)


def test_node_pools_are_off_until_the_cluster_is_named() -> None:
    assert [name for name in operator_env({}) if "GKE" in name or "POOL" in name] == []
    gke = {"project": "my-project", "location": "us-east5", "cluster": "tpus", "sharePools": True, "rounds": 3}
    found = operator_env({"gke": gke})
    settings = Settings.from_env(found)
    assert (settings.gke_project, settings.gke_location, settings.gke_cluster) == ("my-project", "us-east5", "tpus")
    assert (settings.share_pools, settings.capacity_rounds, settings.pool_idle_seconds) == (True, 3, 300.0)


def operator_env(values: Values) -> dict[str, str]:
    (deployment,) = of_kind(values, "Deployment")
    variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    return {each["name"]: each["value"] for each in variables if "value" in each}
