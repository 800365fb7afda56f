"""What clients ask before they do anything: versions, groups, OpenAPI; and the tables kubectl prints."""

from typing import Any

import pytest
from tests.builders.cluster.api_access import Cluster
from tests.builders.cluster.manifests import MERGE, TABLE, configmap, pod, widget


def test_health_needs_no_credentials(api: Cluster) -> None:
    for path in ("/healthz", "/readyz", "/livez"):
        answer = api.http("GET", path)
        assert (answer.status, answer.text.strip()) == (200, "ok")


def test_a_wrong_token_is_refused(api: Cluster) -> None:
    if not api.client.configuration.auth_settings():
        pytest.skip("this kubeconfig uses a certificate, which every request carries")
    status = api.http("GET", "/api/v1/namespaces", token="wrong").expect(401)
    assert (status["kind"], status["reason"]) == ("Status", "Unauthorized")


def test_the_version_is_a_kubernetes_version(api: Cluster) -> None:
    version = api.http("GET", "/version").expect(200)
    assert version["major"] == "1"
    assert int(version["minor"].rstrip("+")) >= 32
    assert version["gitVersion"].startswith("v1.")


def test_groups_and_resources_are_discovered(api: Cluster, widget_crd: Any) -> None:
    assert api.http("GET", "/api").expect(200)["versions"] == ["v1"]
    groups = {group["name"]: group for group in api.http("GET", "/apis").expect(200)["groups"]}
    assert {"apps", "batch", "coordination.k8s.io", "apiextensions.k8s.io", "conformance.posttrain.dev"} <= set(groups)
    assert groups["batch"]["preferredVersion"] == {"groupVersion": "batch/v1", "version": "v1"}
    assert api.http("GET", "/apis/batch").expect(200)["name"] == "batch"
    core = {r["name"]: r for r in api.http("GET", "/api/v1").expect(200)["resources"]}
    assert core["pods"]["shortNames"] == ["po"]
    assert (core["pods"]["namespaced"], core["nodes"]["namespaced"]) == (True, False)
    assert {"pods/log", "pods/status", "pods/binding", "pods/eviction", "namespaces/finalize"} <= set(core)
    assert core["pods/eviction"]["group"] == "policy"


def test_aggregated_discovery_says_the_same(api: Cluster, widget_crd: Any) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    answer = api.http("GET", "/apis", accept=accept)
    assert "as=APIGroupDiscoveryList" in answer.headers["Content-Type"]
    (group,) = [g for g in answer.json["items"] if g["metadata"]["name"] == "conformance.posttrain.dev"]
    (resource,) = group["versions"][0]["resources"]
    assert (resource["resource"], resource["scope"]) == ("widgets", "Namespaced")
    assert resource["singularResource"] == "widget"
    assert [s["subresource"] for s in resource["subresources"]] == ["status"]


def test_openapi_describes_custom_and_built_in_kinds(api: Cluster, widgets: str) -> None:
    paths = api.http("GET", "/openapi/v3").expect(200)["paths"]
    document = api.http("GET", paths["apis/conformance.posttrain.dev/v1"]["serverRelativeURL"]).expect(200)
    schemas = document["components"]["schemas"]
    (schema,) = [s for s in schemas.values() if any(
        gvk["kind"] == "Widget" for gvk in s.get("x-kubernetes-group-version-kind", []))]  # fmt: skip
    assert schema["properties"]["spec"]["properties"]["size"]["default"] == 3
    document = api.http("GET", paths["api/v1"]["serverRelativeURL"]).expect(200)
    (schema,) = [s for s in document["components"]["schemas"].values() if any(
        gvk == {"group": "", "version": "v1", "kind": "Pod"}
        for gvk in s.get("x-kubernetes-group-version-kind", []))]  # fmt: skip
    assert {"metadata", "spec", "status"} <= set(schema["properties"])
    patch = document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"]
    assert "fieldValidation" in {parameter.get("name") for parameter in patch["parameters"]}


def test_unknown_paths_are_not_found(api: Cluster) -> None:
    for path in ("/apis/no.such.group/v1", "/api/v1/nosuchthings", "/apis/batch/v9/jobs", "/openapi/v3/apis/none/v1"):
        assert api.http("GET", path).status == 404


def test_a_custom_resources_table_has_its_columns(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a", {"size": 4})).expect(201)
    table = api.http("GET", widgets, accept=TABLE).expect(200)
    assert table["kind"] == "Table"
    assert [(c["name"], c["type"]) for c in table["columnDefinitions"]] == [
        ("Name", "string"), ("Color", "string"), ("Size", "integer"), ("Age", "date")]  # fmt: skip
    (row,) = table["rows"]
    assert row["cells"][:3] == ["a", "red", 4]
    assert row["cells"][3].endswith("s")
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"]["name"] == "a"
    one = api.http("GET", f"{widgets}/a?includeObject=Object", accept=TABLE).expect(200)
    assert one["rows"][0]["object"]["spec"]["size"] == 4


def test_metadata_alone_can_be_asked_for(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a", labels={"x": "y"})).expect(201)
    accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    listing = api.http("GET", widgets, accept=accept).expect(200)
    assert listing["kind"] == "PartialObjectMetadataList"
    assert listing["items"][0]["metadata"]["labels"] == {"x": "y"}
    assert "spec" not in listing["items"][0]


def test_the_table_of_pods(api: Cluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    api.http("POST", path, pod("p", nodeName="some-node", restartPolicy="Never")).expect(201)
    container = {"name": "main", "image": "i", "imageID": "", "ready": False, "restartCount": 2,
                 "state": {"terminated": {"exitCode": 1, "reason": "OOMKilled"}}}  # fmt: skip
    status = {"status": {"phase": "Failed", "podIP": "127.0.0.1", "containerStatuses": [container]}}
    api.http("PATCH", f"{path}/p/status", status, content_type=MERGE).expect(200)
    table = api.http("GET", path, accept=TABLE).expect(200)
    columns = [c["name"] for c in table["columnDefinitions"]]
    assert columns == ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates"]
    assert [c["priority"] for c in table["columnDefinitions"]] == [0] * 5 + [1] * 4
    cells = dict(zip(columns, table["rows"][0]["cells"], strict=True))
    assert (cells["Ready"], cells["Status"], cells["IP"], cells["Node"]) == (
        "0/1", "OOMKilled", "127.0.0.1", "some-node")  # fmt: skip
    assert cells["Restarts"].startswith("2")


def test_the_tables_of_other_kinds(api: Cluster, namespace: str) -> None:
    base = f"/api/v1/namespaces/{namespace}"
    api.http("POST", f"{base}/configmaps", configmap("c", {"x": "1", "y": "2"})).expect(201)
    table = api.http("GET", f"{base}/configmaps/c", accept=TABLE).expect(200)
    assert [c["name"] for c in table["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert table["rows"][0]["cells"][:2] == ["c", 2]
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}}
    job = {"metadata": {"name": "j"}, "spec": {"suspend": True, "completions": 3, "template": template}}
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    api.http("POST", jobs, job).expect(201)
    table = api.http("GET", f"{jobs}/j", accept=TABLE).expect(200)
    assert [c["name"] for c in table["columnDefinitions"][:5]] == ["Name", "Status", "Completions", "Duration", "Age"]
    assert table["rows"][0]["cells"][0] == "j"
    assert table["rows"][0]["cells"][2] == "0/3"
    event = {"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": namespace},
             "reason": "Why", "message": "because", "type": "Warning"}  # fmt: skip
    api.http("POST", f"{base}/events", event).expect(201)
    table = api.http("GET", f"{base}/events/e", accept=TABLE).expect(200)
    columns = [c["name"] for c in table["columnDefinitions"]]
    cells = dict(zip(columns, table["rows"][0]["cells"], strict=True))
    assert columns[:4] == ["Last Seen", "Type", "Reason", "Object"]
    assert (cells["Type"], cells["Reason"], cells["Object"], cells["Message"]) == (
        "Warning", "Why", "pod/p", "because")  # fmt: skip


def test_everything_is_allowed_to_an_administrator(api: Cluster) -> None:
    review = {"spec": {"resourceAttributes": {"verb": "create", "resource": "pods", "namespace": "default"}}}
    answer = api.http("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review).expect(201)
    assert answer["status"]["allowed"] is True
