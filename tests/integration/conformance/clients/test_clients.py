"""The official Python client, typed and dynamic, and kopf."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import kopf
import pytest
from kubernetes import client, watch
from kubernetes.dynamic import DynamicClient
from tests.builders.cluster.api_access import Cluster
from tests.builders.cluster.manifests import MERGE, eventually, widget

from ptoperator.kopf_login import connection


def test_typed_calls(api: Cluster, namespace: str) -> None:
    core = client.CoreV1Api(api.client)
    body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="a"), data={"x": "1"})
    created = core.create_namespaced_config_map(namespace, body)
    assert created.metadata.uid
    core.patch_namespaced_config_map("a", namespace, {"data": {"y": "2"}})
    assert core.read_namespaced_config_map("a", namespace).data == {"x": "1", "y": "2"}
    listed = core.list_namespaced_config_map(namespace, field_selector="metadata.name=a")
    assert [item.metadata.name for item in listed.items] == ["a"]
    core.delete_namespaced_config_map("a", namespace)
    with pytest.raises(client.ApiException) as error:
        core.read_namespaced_config_map("a", namespace)
    assert error.value.status == 404


def test_typed_jobs_and_pods(api: Cluster, namespace: str) -> None:
    container = client.V1Container(name="c", image="example.com/image:1", command=["true"])
    spec = client.V1PodSpec(containers=[container], restart_policy="Never")
    template = client.V1PodTemplateSpec(spec=spec)
    job = client.V1Job(metadata=client.V1ObjectMeta(name="j"), spec=client.V1JobSpec(template=template, suspend=True))
    created = client.BatchV1Api(api.client).create_namespaced_job(namespace, job)
    assert created.spec.backoff_limit == 6
    pod = client.V1Pod(metadata=client.V1ObjectMeta(name="p"), spec=spec)
    made = client.CoreV1Api(api.client).create_namespaced_pod(namespace, pod)
    assert made.status.phase == "Pending"


def test_the_watch_helper(api: Cluster, namespace: str) -> None:
    core = client.CoreV1Api(api.client)
    version = core.list_namespaced_config_map(namespace).metadata.resource_version
    core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="a")))
    core.delete_namespaced_config_map("a", namespace)
    types = []
    for event in watch.Watch().stream(core.list_namespaced_config_map, namespace, resource_version=version,
                                      timeout_seconds=3):  # fmt: skip
        if event["object"].metadata.name == "a":
            types.append(event["type"])
    assert types == ["ADDED", "DELETED"]


def test_custom_objects(api: Cluster, namespace: str, widgets: str) -> None:
    custom = client.CustomObjectsApi(api.client)
    kind = ("conformance.posttrain.dev", "v1", namespace, "widgets")
    custom.create_namespaced_custom_object(*kind, widget("a"))
    custom.patch_namespaced_custom_object_status(*kind, "a", {"status": {"phase": "Fine"}},
                                                 _content_type=MERGE)  # fmt: skip
    assert custom.get_namespaced_custom_object(*kind, "a")["status"] == {"phase": "Fine"}


def test_the_dynamic_client(api: Cluster, namespace: str, widgets: str, tmp_path: Any) -> None:
    dynamic = DynamicClient(api.client, cache_file=str(tmp_path / "discovery"))
    kind = dynamic.resources.get(api_version="conformance.posttrain.dev/v1", kind="Widget")
    kind.create(body=widget("a"), namespace=namespace)
    applied = kind.server_side_apply(body=widget("b", {"size": 5}), name="b", namespace=namespace,
                                     field_manager="dynamic")  # fmt: skip
    assert applied.spec.size == 5
    assert [item.metadata.name for item in kind.get(namespace=namespace).items] == ["a", "b"]
    kind.delete(name="a", namespace=namespace)
    assert len(kind.get(namespace=namespace).items) == 1


@pytest.fixture
def operator(api: Cluster, namespace: str) -> Iterator[list[str]]:
    """A small kopf operator in a thread; yields what it handled."""
    handled: list[str] = []
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo | None:
        return connection(api.kube)

    @kopf.on.create("conformance.posttrain.dev", "v1", "widgets", registry=registry)
    def create(name: str, patch: kopf.Patch, **_: Any) -> None:
        handled.append(f"create {name}")
        patch.status["phase"] = "Created"

    @kopf.on.update("conformance.posttrain.dev", "v1", "widgets", field="spec.size", registry=registry)
    def update(name: str, new: int, body: kopf.Body, **_: Any) -> None:
        handled.append(f"update {name} {new}")
        kopf.info(body, reason="Resized", message=f"now {new}")

    @kopf.on.delete("conformance.posttrain.dev", "v1", "widgets", registry=registry)
    def delete(name: str, **_: Any) -> None:
        handled.append(f"delete {name}")

    stop, ready = threading.Event(), threading.Event()
    settings = kopf.OperatorSettings()
    settings.posting.enabled = True

    def run() -> None:
        asyncio.run(kopf.operator(registry=registry, settings=settings, namespaces=[namespace], stop_flag=stop,
                                  ready_flag=ready, standalone=True))  # fmt: skip

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(120)
    yield handled
    stop.set()
    thread.join(120)


def test_a_kopf_operator_sees_the_whole_life_of_an_object(api: Cluster, widgets: str, operator: list[str],
                                                          namespace: str) -> None:  # fmt: skip
    api.http("POST", widgets, widget("a")).expect(201)
    eventually(lambda: api.http("GET", f"{widgets}/a").json.get("status") == {"phase": "Created"})
    assert api.http("GET", f"{widgets}/a").json["metadata"]["finalizers"], "kopf adds its finalizer by JSON patch"
    api.http("PATCH", f"{widgets}/a", {"spec": {"size": 7}}, content_type=MERGE).expect(200)
    eventually(lambda: "update a 7" in operator)
    events = f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name%3Da"
    eventually(lambda: "Resized" in [e["reason"] for e in api.http("GET", events).json["items"]])
    api.http("DELETE", f"{widgets}/a").expect(200)
    eventually(lambda: api.http("GET", f"{widgets}/a").status == 404)
    assert operator == ["create a", "update a 7", "delete a"]
