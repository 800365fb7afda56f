"""The chart, rendered and linted by Helm itself (its Go SDK, from a wheel)."""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from ptapi.spec import Pod, Resources
from ptoperator.monitoring.metrics import Metrics
from ptoperator.settings import Settings, pod_defaults

helm = pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this platform")

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "posttrain"
Values = dict[str, Any]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the CRD is in every rendering: a quarter of a second without


def documents(values: Values) -> list[dict[str, Any]]:
    return _documents(json.dumps(values))


@lru_cache
def _documents(values: str) -> list[dict[str, Any]]:
    """Rendered once; nobody changes them."""
    rendered = helm.Chart.load(str(CHART)).render(json.loads(values), name="pt", namespace="posttrain-system")
    texts = [text for name, text in rendered.items() if name.endswith(".yaml")]
    return [doc for text in texts for doc in yaml.load_all(text, LOADER) if doc]


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


def test_chart_carries_the_generated_crd_and_helm_may_not_delete_it() -> None:
    generated = yaml.safe_load((ROOT / "manifests" / "crds" / "posttrain.dev_posttrainjobs.yaml").read_text())
    assert "annotations" not in generated["metadata"]
    kept = generated["metadata"] | {"annotations": {"helm.sh/resource-policy": "keep"}}
    assert of_kind({}, "CustomResourceDefinition") == [generated | {"metadata": kept}]
    assert of_kind({"crds": {"install": False}}, "CustomResourceDefinition") == []


def test_no_rule_has_a_wildcard() -> None:
    assert [rule for _, rule in rules({}) for word in rule["verbs"] + rule["resources"] if "*" in word] == []


def test_jobs_may_be_made_read_and_deleted_and_nothing_else() -> None:
    granted = [rule for _, rule in rules({}) if rule["apiGroups"] == ["batch"]]
    assert granted == [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "create", "delete"]}]


def test_deployments_and_services_are_the_operators_only_with_tensorboard_servers() -> None:
    def resources(values: Values) -> set[str]:
        return {resource for _, rule in rules(values) for resource in rule["resources"]}

    assert resources({}) & {"deployments", "services"} == set()
    assert env_of({})["POSTTRAIN_TENSORBOARD_SERVERS"] == "false"
    served = {"tensorboard": {"servers": True}}
    assert resources(served) >= {"deployments", "services"}
    assert env_of(served)["POSTTRAIN_TENSORBOARD_SERVERS"] == "true"
    with pytest.raises(Exception, match=r"tensorboard\.ingress\.domain: expected only with tensorboard\.servers=true"):
        documents({"tensorboard": {"ingress": {"domain": "tb.example.com"}}})


def test_sandboxes_are_the_operators_only_where_they_are_enabled() -> None:
    def groups(values: Values) -> set[str]:
        return {group for _, rule in rules(values) for group in rule["apiGroups"]}

    assert "extensions.agents.x-k8s.io" not in groups({})
    assert "extensions.agents.x-k8s.io" in groups({"sandboxes": {"enabled": True}})


def test_listed_namespaces_get_roles_instead_of_cluster_wide_rights() -> None:
    values = {"namespaces": ["team-a", "team-b"]}
    assert [role["metadata"]["namespace"] for role in of_kind(values, "Role")] == [
        "team-a",
        "team-b",
        "posttrain-system",
    ]
    cluster_groups = {group for kind, rule in rules(values) if kind == "ClusterRole" for group in rule["apiGroups"]}
    assert cluster_groups == {"apiextensions.k8s.io", "", "scheduling.k8s.io", "kueue.x-k8s.io"}
    cluster_resources = {r for kind, rule in rules(values) if kind == "ClusterRole" for r in rule["resources"]}
    others = {"admissionchecks", "admissionchecks/status"}
    assert cluster_resources == {"customresourcedefinitions", "namespaces", "nodes", "priorityclasses", *others}


def test_operator_pod_meets_the_restricted_standard() -> None:
    pod = of_kind({}, "Deployment")[0]["spec"]["template"]["spec"]
    container = pod["containers"][0]["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["allowPrivilegeEscalation"] is False
    assert container["readOnlyRootFilesystem"] is True
    assert container["capabilities"] == {"drop": ["ALL"]}


def env_of(values: Values) -> dict[str, str]:
    container = of_kind(values, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_two_replicas_agree_by_a_lease_on_the_one_that_works() -> None:
    spec = of_kind({}, "Deployment")[0]["spec"]
    assert spec["replicas"] == 2
    variables = spec["template"]["spec"]["containers"][0]["env"]
    (namespace,) = [each for each in variables if each["name"] == "POSTTRAIN_LEADER_NAMESPACE"]
    assert namespace["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
    budget = of_kind({}, "PodDisruptionBudget")[0]["spec"]
    assert budget["maxUnavailable"] == 1
    assert of_kind({"replicas": 1}, "PodDisruptionBudget") == []


def test_nobody_reaches_the_operator_but_for_its_probes_and_metrics() -> None:
    assert of_kind({}, "NetworkPolicy") == []
    made = of_kind({"networkPolicy": {"enabled": True}}, "NetworkPolicy")
    policies = {each["metadata"]["name"]: each["spec"] for each in made}
    operator = policies["pt-operator"]
    assert operator["ingress"] == [{"ports": [{"port": 8080, "protocol": "TCP"}]}]
    assert operator["policyTypes"] == ["Ingress"]
    trainer = policies["pt-trainer"]
    trainers = {"matchLabels": {"app.kubernetes.io/name": "posttrain", "app.kubernetes.io/component": "trainer"}}
    components = {"key": "app.kubernetes.io/component", "operator": "In", "values": ["trainer", "service"]}
    pods = {"matchLabels": {"app.kubernetes.io/name": "posttrain"}, "matchExpressions": [components]}
    assert trainer["podSelector"] == pods, "services of a run are reached by its trainers alone, too"
    assert [peer for rule in trainer["ingress"] for peer in rule["from"]] == [{"podSelector": trainers}]


def test_no_policy_says_what_pods_may_reach() -> None:
    """The API servers of Kubernetes and GKE, the metadata server, the hub, buckets: as the namespace has them."""
    policies = of_kind({"networkPolicy": {"enabled": True}, "namespaces": ["team-a"]}, "NetworkPolicy")
    assert len(policies) == 2
    assert [each for each in policies if each["spec"]["policyTypes"] != ["Ingress"] or "egress" in each["spec"]] == []


def test_every_pod_that_must_reach_its_peers_is_let_through() -> None:
    """Trainers of all hosts, Pathways' head and workers, samplers and services, of every example."""
    policies = of_kind({"networkPolicy": {"enabled": True}}, "NetworkPolicy")
    (selector,) = [each["spec"]["podSelector"] for each in policies if each["metadata"]["name"] == "pt-trainer"]
    renderings = (ROOT / "tests" / "golden" / "render").glob("*.yaml")
    sets = [doc for path in renderings for doc in yaml.load_all(path.read_text(), LOADER) if doc["kind"] == "JobSet"]
    jobs = [job["template"]["spec"]["template"] for each in sets for job in each["spec"]["replicatedJobs"]]
    assert len(jobs) > 20
    assert [job for job in jobs if not selector["matchLabels"].items() <= job["metadata"]["labels"].items()] == []
    (components,) = selector["matchExpressions"]
    assert {job["metadata"]["labels"][components["key"]] for job in jobs} == set(components["values"])


def test_trainers_of_every_served_namespace_get_their_policy() -> None:
    values = {"networkPolicy": {"enabled": True}, "namespaces": ["team-a", "team-b"]}
    namespaces = [each["metadata"]["namespace"] for each in of_kind(values, "NetworkPolicy")]
    assert namespaces == ["posttrain-system", "team-a", "team-b"]


def made_metrics() -> set[str]:
    """Every series that the operator can show."""
    families = list(Metrics(list, lambda: None).registry.collect())
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return {f"{each.name}{ending}" for each in families for ending in endings.get(each.type, ("",))}


def test_dashboard_and_alerts_ask_for_metrics_that_exist() -> None:
    values = {"metrics": {"dashboard": True, "rules": True}}
    board = next(each for each in of_kind(values, "ConfigMap") if each["metadata"]["name"] == "pt-dashboard")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    dashboard = json.loads(board["data"]["posttrain.json"])
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(queries) >= 12
    rules = of_kind(values, "PrometheusRule")[0]["spec"]["groups"][0]["rules"]
    assert {rule["alert"] for rule in rules} == {
        "PosttrainStuckProvisioning",
        "PosttrainNoHeartbeat",
        "PosttrainHangs",
        "PosttrainOrphanNodePool",
        "PosttrainReconcileErrors",
        "PosttrainNoLeader",
    }
    expressions = " ".join([*queries, *(rule["expr"] for rule in rules)])
    assert set(re.findall(r"posttrain_[a-z_]+", expressions)) - made_metrics() == set()
    assert all(rule["annotations"]["description"] for rule in rules)


def test_dashboard_and_alerts_are_asked_for() -> None:
    assert of_kind({}, "PrometheusRule") == []
    assert of_kind({}, "ConfigMap") == []


def test_ingresses_may_be_made_only_where_a_domain_is_named() -> None:
    def may_make(values: dict[str, Any]) -> bool:
        return any("ingresses" in rule["resources"] for _, rule in rules(values))

    assert not may_make({})
    assert env_of({})["POSTTRAIN_TENSORBOARD_INGRESS"] == ""
    named = {"tensorboard": {"servers": True, "ingress": {"domain": "tb.example.com", "className": "nginx"}}}
    assert may_make(named)
    assert json.loads(env_of(named)["POSTTRAIN_TENSORBOARD_INGRESS"])["domain"] == "tb.example.com"
    assert not any("httproutes" in rule["resources"] for _, rule in rules(named))
    routed = {"tensorboard": {"servers": True, "ingress": {"domain": "tb.example.com", "gateway": {"name": "shared"}}}}
    assert any("httproutes" in rule["resources"] for _, rule in rules(routed))


def test_provisioning_requests_may_be_made_only_where_the_operator_makes_node_pools() -> None:
    def may_make(values: dict[str, Any]) -> set[str]:
        granted = {each for _, rule in rules(values) if "create" in rule["verbs"] for each in rule["resources"]}
        return granted & {"provisioningrequests", "podtemplates"}

    assert may_make({}) == set()
    gke = {"project": "my-project", "location": "us-east5", "cluster": "tpus"}
    assert may_make({"gke": gke}) == {"provisioningrequests", "podtemplates"}


def test_prices_go_to_the_operator_as_one_setting() -> None:
    assert env_of({})["POSTTRAIN_PRICES"] == ""
    prices = env_of({"prices": {"currency": "EUR", "perChipHour": {"v6e": 2.7, "v6e/spot": 0.9}}})
    assert json.loads(prices["POSTTRAIN_PRICES"]) == {"currency": "EUR", "perChipHour": {"v6e": 2.7, "v6e/spot": 0.9}}


def test_defaults_of_the_pods_reach_the_operator_in_the_words_of_a_job() -> None:
    assert not {"POSTTRAIN_TRAINER_POD", "POSTTRAIN_TRAINER_RESOURCES"} & env_of({}).keys()
    pod = {"securityContext": {"runAsUser": 0}, "containerSecurityContext": {"privileged": True}, "hostNetwork": True}
    trainer = {"pod": pod, "resources": {"trainer": {"limits": {"memory": "64Gi"}}}}
    settings = Settings.from_env(env_of({"trainer": trainer}))
    assert pod_defaults.pod(settings.trainer_pod) == Pod.model_validate(pod)
    assert pod_defaults.resources(settings.trainer_resources) == Resources.model_validate(trainer["resources"])


@pytest.mark.parametrize(("name", "model"), [("pod", Pod), ("resources", Resources)])
def test_the_schema_of_values_knows_every_field_of_the_pods_defaults(name: str, model: type[BaseModel]) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    known = schema["properties"]["trainer"]["properties"][name]["propertyNames"]["enum"]
    assert known == [field.alias for field in model.model_fields.values()]


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
        ({"trainer": {"serviceAccount": {"create": True}}}, "trainer.serviceAccount.name: default"),
        ({"serviceAccount": {"name": "default"}}, "serviceAccount.name: default"),
    ],
)
def test_wrong_values_are_refused_by_name(values: Values, word: str) -> None:
    with pytest.raises(Exception, match=word):
        documents(values)


def test_node_pools_are_off_until_the_cluster_is_named() -> None:
    assert [name for name in operator_env({}) if "GKE" in name or "POOL" in name] == []
    gke = {"project": "my-project", "location": "us-east5", "cluster": "tpus", "sharePools": True, "rounds": 3}
    env = operator_env({"gke": gke})
    settings = Settings.from_env(env)
    assert (settings.gke_project, settings.gke_location, settings.gke_cluster) == ("my-project", "us-east5", "tpus")
    assert (settings.share_pools, settings.capacity_rounds, settings.pool_idle_seconds) == (True, 3, 300.0)


def operator_env(values: Values) -> dict[str, str]:
    (deployment,) = of_kind(values, "Deployment")
    variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    return {each["name"]: each["value"] for each in variables if "value" in each}


@pytest.mark.parametrize(
    ("value", "kind", "group"),
    [
        ("serviceMonitor", "ServiceMonitor", "monitoring.coreos.com"),
        ("podMonitoring", "PodMonitoring", "monitoring.googleapis.com"),
    ],
)
def test_a_monitor_selects_what_serves_the_metrics(value: str, kind: str, group: str) -> None:
    assert of_kind({}, kind) == []
    values = {"metrics": {value: {"enabled": True, "interval": "10s", "labels": {"release": "prometheus"}}}}
    (monitor,) = of_kind(values, kind)
    assert monitor["apiVersion"] == f"{group}/v1"
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["endpoints"] == [{"port": "http", "path": "/metrics", "interval": "10s"}]
    (service,) = of_kind(values, "Service")
    pod = of_kind(values, "Deployment")[0]["spec"]["template"]
    labels = {"ServiceMonitor": service["metadata"]["labels"], "PodMonitoring": pod["metadata"]["labels"]}[kind]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    ports = {"ServiceMonitor": service["spec"]["ports"], "PodMonitoring": pod["spec"]["containers"][0]["ports"]}[kind]
    assert [port["name"] for port in ports] == ["http"]
    assert "annotations" not in service["metadata"]  # else Prometheus scrapes it twice


def test_pods_of_the_operator_get_annotations_labels_and_variables() -> None:
    values = {
        "podAnnotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
        "podLabels": {"team": "platform", "app.kubernetes.io/name": "other"},
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    }
    deployment = of_kind(values, "Deployment")[0]["spec"]
    metadata = deployment["template"]["metadata"]
    assert metadata["annotations"] == values["podAnnotations"]
    assert metadata["labels"]["team"] == "platform"
    assert deployment["selector"]["matchLabels"].items() <= metadata["labels"].items()
    assert env_of(values)["HTTPS_PROXY"] == "http://proxy:3128"


def test_a_variable_of_the_chart_itself_is_refused() -> None:
    with pytest.raises(Exception, match="env: POSTTRAIN_LOG_LEVEL is the chart's own"):
        documents({"env": [{"name": "POSTTRAIN_LOG_LEVEL", "value": "debug"}]})
