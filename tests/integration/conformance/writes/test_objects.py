"""Create, read, replace: identity, versions, generation, names, namespaces, dry run."""

import re

import pytest
from tests.builders.cluster.api_access import Cluster
from tests.builders.cluster.manifests import MERGE, configmap, eventually, widget


def maps(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps" + (f"/{name}" if name else "")


def test_a_new_object_gets_uid_version_and_time(api: Cluster, namespace: str) -> None:
    created = api.http("POST", maps(namespace), configmap("a", {"x": "1"})).expect(201)
    meta = created["metadata"]
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", meta["uid"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", meta["creationTimestamp"])
    assert int(meta["resourceVersion"]) > 0
    assert (created["apiVersion"], created["kind"], meta["namespace"]) == ("v1", "ConfigMap", namespace)
    assert api.http("GET", maps(namespace, "a")).expect(200) == created


def test_a_second_object_of_the_same_name_is_refused(api: Cluster, namespace: str) -> None:
    api.http("POST", maps(namespace), configmap("a")).expect(201)
    status = api.http("POST", maps(namespace), configmap("a")).expect(409)
    assert (status["kind"], status["status"], status["reason"]) == ("Status", "Failure", "AlreadyExists")
    assert status["message"] == 'configmaps "a" already exists'
    assert status["details"] == {"name": "a", "kind": "configmaps"}


def test_a_missing_object_is_not_found(api: Cluster, namespace: str) -> None:
    status = api.http("GET", maps(namespace, "nothing")).expect(404)
    assert (status["reason"], status["message"]) == ("NotFound", 'configmaps "nothing" not found')


def test_generate_name_appends_five_characters(api: Cluster, namespace: str) -> None:
    body = {"metadata": {"generateName": "job-"}}
    names = {api.http("POST", maps(namespace), body).expect(201)["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(re.fullmatch(r"job-[a-z0-9]{5}", name) for name in names)


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "dot.", "a" * 254, "a b", "ü"])
def test_a_bad_name_is_refused_and_named(api: Cluster, namespace: str, name: str) -> None:
    status = api.http("POST", maps(namespace), configmap(name)).expect(422)
    assert status["reason"] == "Invalid"
    assert status["details"]["causes"][0]["field"] == "metadata.name"


def test_an_object_without_a_name_is_refused(api: Cluster, namespace: str) -> None:
    status = api.http("POST", maps(namespace), {"metadata": {}}).expect(422)
    assert "metadata.name: Required value: name or generateName is required" in status["message"]


def test_bad_labels_are_refused(api: Cluster, namespace: str) -> None:
    status = api.http("POST", maps(namespace), configmap("a", labels={"a b": "c d"})).expect(422)
    assert {cause["field"] for cause in status["details"]["causes"]} == {"metadata.labels"}


def test_annotations_of_more_than_256_kib_are_refused(api: Cluster, namespace: str) -> None:
    status = api.http("POST", maps(namespace), configmap("a", annotations={"a": "x" * 262_144})).expect(422)
    assert "metadata.annotations: Too long" in status["message"]


def test_nothing_is_created_in_a_namespace_that_does_not_exist(api: Cluster) -> None:
    status = api.http("POST", maps("no-such-namespace"), configmap("a")).expect(404)
    assert status["message"] == 'namespaces "no-such-namespace" not found'


def test_the_namespace_of_the_body_must_be_that_of_the_path(api: Cluster, namespace: str) -> None:
    status = api.http("POST", maps(namespace), configmap("a", namespace="other")).expect(400)
    assert "does not match the namespace" in status["message"]


def test_each_write_raises_the_version_and_a_write_that_changes_nothing_does_not(api: Cluster, namespace: str) -> None:
    first = api.http("POST", maps(namespace), configmap("a", {"x": "1"})).expect(201)
    second = api.http("PATCH", maps(namespace, "a"), {"data": {"x": "2"}}, content_type=MERGE).expect(200)
    third = api.http("PATCH", maps(namespace, "a"), {"data": {"x": "2"}}, content_type=MERGE).expect(200)
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    assert third["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


def test_a_replace_with_an_old_version_is_a_conflict(api: Cluster, namespace: str) -> None:
    old = api.http("POST", maps(namespace), configmap("a", {"x": "1"})).expect(201)
    api.http("PATCH", maps(namespace, "a"), {"data": {"x": "2"}}, content_type=MERGE).expect(200)
    status = api.http("PUT", maps(namespace, "a"), {**old, "data": {"x": "3"}}).expect(409)
    assert status["reason"] == "Conflict"
    assert "the object has been modified; please apply your changes to the latest version" in status["message"]
    assert api.http("GET", maps(namespace, "a")).json["data"] == {"x": "2"}


def test_what_the_server_set_cannot_be_changed(api: Cluster, namespace: str) -> None:
    created = api.http("POST", maps(namespace), configmap("a")).expect(201)
    changed = {**created, "metadata": {**created["metadata"], "creationTimestamp": "2001-01-01T00:00:00Z"}}
    replaced = api.http("PUT", maps(namespace, "a"), changed).expect(200)
    assert replaced["metadata"]["creationTimestamp"] == created["metadata"]["creationTimestamp"]


def test_a_replace_of_another_uid_is_a_conflict(api: Cluster, namespace: str) -> None:
    api.http("POST", maps(namespace), configmap("a")).expect(201)
    status = api.http("PUT", maps(namespace, "a"), configmap("a", uid="not-this-one")).expect(409)
    assert status["reason"] == "Conflict"


def test_a_custom_resource_is_replaced_only_with_a_version(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a")).expect(201)
    status = api.http("PUT", f"{widgets}/a", widget("a", {"size": 4})).expect(422)
    assert "metadata.resourceVersion" in status["message"]
    assert "must be specified for an update" in status["message"]


def test_generation_counts_changes_of_the_spec_alone(api: Cluster, widgets: str) -> None:
    def generation(body: object, path: str = "") -> int:
        return api.http("PATCH", f"{widgets}/a{path}", body, content_type=MERGE).expect(200)["metadata"]["generation"]

    assert api.http("POST", widgets, widget("a")).expect(201)["metadata"]["generation"] == 1
    assert generation({"spec": {"size": 4}}) == 2
    assert generation({"spec": {"size": 4}}) == 2
    assert generation({"metadata": {"labels": {"a": "b"}}}) == 2
    assert generation({"status": {"phase": "x"}}, "/status") == 2


def test_a_dry_run_answers_as_a_write_would_and_stores_nothing(api: Cluster, widgets: str) -> None:
    answer = api.http("POST", f"{widgets}?dryRun=All", widget("a")).expect(201)
    assert answer["spec"] == {"color": "red", "size": 3}
    api.http("GET", f"{widgets}/a").expect(404)
    assert api.http("POST", f"{widgets}?dryRun=All", widget("b", {"size": 0})).status == 422
    api.http("POST", widgets, widget("a")).expect(201)
    patched = api.http("PATCH", f"{widgets}/a?dryRun=All", {"spec": {"size": 9, "color": "blue"}}, content_type=MERGE)
    assert patched.expect(200)["spec"]["size"] == 9
    api.http("DELETE", f"{widgets}/a?dryRun=All").expect(200)
    assert api.http("GET", f"{widgets}/a").expect(200)["spec"]["size"] == 3


def test_a_namespace_carries_its_name_as_a_label(api: Cluster, namespace: str) -> None:
    stored = api.http("GET", f"/api/v1/namespaces/{namespace}").expect(200)
    assert stored["metadata"]["labels"]["kubernetes.io/metadata.name"] == namespace
    assert stored["status"]["phase"] == "Active"


def test_the_namespaces_of_every_cluster_are_there(api: Cluster) -> None:
    def names() -> set[str]:
        return {item["metadata"]["name"] for item in api.http("GET", "/api/v1/namespaces").expect(200)["items"]}

    eventually(lambda: {"default", "kube-system", "kube-node-lease"} <= names())


def test_an_immutable_configmap_stays_as_it_is(api: Cluster, namespace: str) -> None:
    api.http("POST", maps(namespace), {**configmap("a", {"x": "1"}), "immutable": True}).expect(201)
    status = api.http("PATCH", maps(namespace, "a"), {"data": {"x": "2"}}, content_type=MERGE).expect(422)
    assert "field is immutable when `immutable` is set" in status["message"]


def test_plain_text_of_a_secret_is_stored_as_base64(api: Cluster, namespace: str) -> None:
    body = {"metadata": {"name": "s"}, "stringData": {"token": "hello"}}
    created = api.http("POST", f"/api/v1/namespaces/{namespace}/secrets", body).expect(201)
    assert created["data"] == {"token": "aGVsbG8="}
    assert created["type"] == "Opaque"
    assert "stringData" not in created
