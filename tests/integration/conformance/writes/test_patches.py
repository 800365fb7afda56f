"""JSON merge patch, JSON patch and strategic merge patch."""

from tests.builders.cluster.api_access import Cluster
from tests.builders.cluster.manifests import JSON_PATCH, MERGE, STRATEGIC, configmap, pod, widget


def test_a_merge_patch_sets_merges_and_removes(api: Cluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    api.http("POST", path, configmap("a", {"x": "1", "y": "2"}, labels={"l": "1"})).expect(201)
    patch = {"data": {"x": None, "z": "3"}, "metadata": {"labels": {"m": "2"}}}
    patched = api.http("PATCH", f"{path}/a", patch, content_type=MERGE).expect(200)
    assert patched["data"] == {"y": "2", "z": "3"}
    assert patched["metadata"]["labels"] == {"l": "1", "m": "2"}


def test_a_merge_patch_replaces_lists_whole(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a", {"list": ["1", "2"]})).expect(201)
    patched = api.http("PATCH", f"{widgets}/a", {"spec": {"list": ["3"]}}, content_type=MERGE).expect(200)
    assert patched["spec"]["list"] == ["3"]


def test_a_patch_with_an_old_version_is_a_conflict(api: Cluster, widgets: str) -> None:
    old = api.http("POST", widgets, widget("a")).expect(201)["metadata"]["resourceVersion"]
    body = {"metadata": {"resourceVersion": old}, "spec": {"size": 4}}
    new = api.http("PATCH", f"{widgets}/a", body, content_type=MERGE).expect(200)
    assert new["spec"]["size"] == 4
    body["spec"] = {"size": 5}
    assert api.http("PATCH", f"{widgets}/a", body, content_type=MERGE).expect(409)["reason"] == "Conflict"


def test_a_json_patch_tests_before_it_writes(api: Cluster, widgets: str) -> None:
    created = api.http("POST", widgets, widget("a")).expect(201)
    version = created["metadata"]["resourceVersion"]
    patch = [{"op": "test", "path": "/metadata/resourceVersion", "value": version},
             {"op": "add", "path": "/metadata/finalizers", "value": ["posttrain.dev/x"]},
             {"op": "replace", "path": "/spec/size", "value": 5},
             {"op": "remove", "path": "/spec/color"},
             {"op": "add", "path": "/spec/list", "value": []},
             {"op": "add", "path": "/spec/list/-", "value": "a~1b"}]  # fmt: skip
    patched = api.http("PATCH", f"{widgets}/a", patch, content_type=JSON_PATCH).expect(200)
    assert patched["metadata"]["finalizers"] == ["posttrain.dev/x"]
    assert patched["spec"] == {"size": 5, "color": "red", "list": ["a~1b"]}
    status = api.http("PATCH", f"{widgets}/a", patch, content_type=JSON_PATCH).expect(422)
    assert status["reason"] == "Invalid"
    api.http("PATCH", f"{widgets}/a", {"metadata": {"finalizers": None}}, content_type=MERGE).expect(200)


def test_a_json_patch_of_a_missing_path_is_refused(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a")).expect(201)
    patch = [{"op": "remove", "path": "/spec/nothing"}]
    assert api.http("PATCH", f"{widgets}/a", patch, content_type=JSON_PATCH).expect(422)["reason"] == "Invalid"


def test_a_strategic_patch_merges_lists_by_their_key(api: Cluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    api.http("POST", path, pod("p", nodeName="n", restartPolicy="Never")).expect(201)
    for condition in ({"type": "Ready", "status": "False"}, {"type": "Custom", "status": "True"},
                      {"type": "Ready", "status": "True"}):  # fmt: skip
        patch = {"status": {"conditions": [condition]}}
        patched = api.http("PATCH", f"{path}/p/status", patch, content_type=STRATEGIC).expect(200)
    conditions = {c["type"]: c["status"] for c in patched["status"]["conditions"]}
    assert conditions == {"Ready": "True", "Custom": "True"}
    patch = {"status": {"conditions": [{"type": "Custom", "$patch": "delete"}]}}
    patched = api.http("PATCH", f"{path}/p/status", patch, content_type=STRATEGIC).expect(200)
    assert [c["type"] for c in patched["status"]["conditions"]] == ["Ready"]


def test_custom_resources_take_no_strategic_patch(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a")).expect(201)
    status = api.http("PATCH", f"{widgets}/a", {"spec": {}}, content_type=STRATEGIC).expect(415)
    assert status["reason"] == "UnsupportedMediaType"


def test_a_patch_of_a_missing_object_is_not_found(api: Cluster, widgets: str) -> None:
    assert api.http("PATCH", f"{widgets}/nothing", {"spec": {}}, content_type=MERGE).expect(404)["reason"] == "NotFound"


def test_a_strict_patch_refuses_unknown_fields(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a")).expect(201)
    answer = api.http("PATCH", f"{widgets}/a?fieldValidation=Strict", {"spec": {"foo": 1}}, content_type=MERGE)
    assert 400 <= answer.status < 500
    assert 'unknown field "spec.foo"' in answer.json["message"].replace("\\", "")
