"""Deletion: preconditions, finalizers, propagation, grace, collections, namespaces."""

import pytest
from tests.builders.cluster.api_access import Cluster
from tests.builders.cluster.manifests import MERGE, configmap, eventually, pod, widget

FINALIZER = "posttrain.dev/hold"


def test_a_deleted_object_is_gone_and_the_answer_names_it(api: Cluster, widgets: str) -> None:
    created = api.http("POST", widgets, widget("a")).expect(201)
    status = api.http("DELETE", f"{widgets}/a").expect(200)
    assert (status["kind"], status["status"]) == ("Status", "Success")
    assert status["details"] == {"name": "a", "group": "conformance.posttrain.dev", "kind": "widgets",
                                 "uid": created["metadata"]["uid"]}  # fmt: skip
    api.http("GET", f"{widgets}/a").expect(404)
    api.http("DELETE", f"{widgets}/a").expect(404)


def test_preconditions_protect_an_object(api: Cluster, widgets: str) -> None:
    created = api.http("POST", widgets, widget("a")).expect(201)
    for wrong in ({"uid": "not-this-one"}, {"resourceVersion": "1"}):
        assert api.http("DELETE", f"{widgets}/a", {"preconditions": wrong}).expect(409)["reason"] == "Conflict"
    right = {"uid": created["metadata"]["uid"], "resourceVersion": created["metadata"]["resourceVersion"]}
    api.http("DELETE", f"{widgets}/a", {"preconditions": right}).expect(200)


def test_a_finalizer_holds_a_deleted_object(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a", finalizers=[FINALIZER])).expect(201)
    held = api.http("DELETE", f"{widgets}/a").expect(200)
    assert held["kind"] == "Widget"
    assert held["metadata"]["deletionTimestamp"]
    assert held["metadata"]["deletionGracePeriodSeconds"] == 0
    again = api.http("DELETE", f"{widgets}/a").expect(200)
    assert again["metadata"]["deletionTimestamp"] == held["metadata"]["deletionTimestamp"]
    changed = api.http("PATCH", f"{widgets}/a", {"spec": {"size": 5}}, content_type=MERGE).expect(200)
    assert changed["spec"]["size"] == 5, "it can still be changed"
    more = {"metadata": {"finalizers": [FINALIZER, "posttrain.dev/more"]}}
    status = api.http("PATCH", f"{widgets}/a", more, content_type=MERGE).expect(422)
    assert "no new finalizers can be added if the object is being deleted" in status["message"]
    last = api.http("PATCH", f"{widgets}/a", {"metadata": {"finalizers": None}}, content_type=MERGE).expect(200)
    assert "finalizers" not in last["metadata"]
    api.http("GET", f"{widgets}/a").expect(404)


def test_the_end_of_a_held_object_is_seen_as_one_deletion(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a", finalizers=[FINALIZER])).expect(201)
    version = api.http("GET", widgets).expect(200)["metadata"]["resourceVersion"]
    with api.watch(f"{widgets}?watch=1&resourceVersion={version}") as watch:
        api.http("DELETE", f"{widgets}/a").expect(200)
        api.http("PATCH", f"{widgets}/a", {"metadata": {"finalizers": []}}, content_type=MERGE).expect(200)
        assert watch.first(2) == [("MODIFIED", "a"), ("DELETED", "a")]


def test_a_deletion_raises_the_generation_of_a_held_object(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a", finalizers=[FINALIZER])).expect(201)
    assert api.http("DELETE", f"{widgets}/a").expect(200)["metadata"]["generation"] == 2
    api.http("PATCH", f"{widgets}/a", {"metadata": {"finalizers": None}}, content_type=MERGE).expect(200)


@pytest.mark.parametrize(("policy", "finalizer"), [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")])
def test_a_propagation_policy_becomes_a_finalizer_for_the_garbage_collector(
    api: Cluster, namespace: str, policy: str, finalizer: str
) -> None:
    if api.has_controller_manager:
        pytest.skip("its garbage collector is done before we look")
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    api.http("POST", path, configmap("a")).expect(201)
    held = api.http("DELETE", f"{path}/a?propagationPolicy={policy}").expect(200)
    assert held["metadata"]["finalizers"] == [finalizer]
    assert held["metadata"]["deletionTimestamp"]
    api.http("PATCH", f"{path}/a", {"metadata": {"finalizers": None}}, content_type=MERGE).expect(200)
    api.http("GET", f"{path}/a").expect(404)


def test_a_later_background_deletion_drops_the_foreground_finalizer(api: Cluster, widgets: str) -> None:
    if api.has_controller_manager:
        pytest.skip("its garbage collector is done before we look")
    api.http("POST", widgets, widget("a")).expect(201)
    held = api.http("DELETE", f"{widgets}/a", {"propagationPolicy": "Foreground"}).expect(200)
    assert held["metadata"]["finalizers"] == ["foregroundDeletion"]
    api.http("DELETE", f"{widgets}/a", {"propagationPolicy": "Background"}).expect(200)
    api.http("GET", f"{widgets}/a").expect(404)


def test_a_job_deleted_without_a_policy_leaves_its_pods(api: Cluster, namespace: str) -> None:
    if api.has_controller_manager:
        pytest.skip("its garbage collector is done before we look")
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "example.com/i:1"}]}}
    api.http("POST", path, {"metadata": {"name": "j"}, "spec": {"suspend": True, "template": template}}).expect(201)
    assert api.http("DELETE", f"{path}/j").expect(200)["metadata"]["finalizers"] == ["orphan"]
    api.http("PATCH", f"{path}/j", {"metadata": {"finalizers": None}}, content_type=MERGE).expect(200)


def test_an_unknown_propagation_policy_is_refused(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a")).expect(201)
    status = api.http("DELETE", f"{widgets}/a?propagationPolicy=Sideways").expect(422)
    assert 'propagationPolicy: Unsupported value: "Sideways"' in status["message"]


def test_a_pod_on_no_node_is_deleted_at_once(api: Cluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    api.http("POST", path, pod("p", nodeSelector={"no": "such-node"})).expect(201)
    assert api.http("DELETE", f"{path}/p").expect(200)["kind"] == "Pod"
    api.http("GET", f"{path}/p").expect(404)


def test_a_pod_on_a_node_is_deleted_when_its_kubelet_says_so(api: Cluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    api.http("POST", path, pod("p", nodeName="no-such-node", terminationGracePeriodSeconds=600)).expect(201)
    first = api.http("DELETE", f"{path}/p").expect(200)["metadata"]
    assert first["deletionGracePeriodSeconds"] == 600
    shorter = api.http("DELETE", f"{path}/p?gracePeriodSeconds=300").expect(200)["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 300
    longer = api.http("DELETE", f"{path}/p?gracePeriodSeconds=900").expect(200)["metadata"]
    assert longer["deletionGracePeriodSeconds"] == 300, "a grace period is never made longer"
    assert api.http("GET", f"{path}/p").expect(200)["metadata"]["deletionTimestamp"]
    api.http("DELETE", f"{path}/p", {"gracePeriodSeconds": 0}).expect(200)
    api.http("GET", f"{path}/p").expect(404)


def test_a_finished_pod_has_no_grace_period(api: Cluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    api.http("POST", path, pod("p", nodeName="no-such-node", restartPolicy="Never")).expect(201)
    api.http("PATCH", f"{path}/p/status", {"status": {"phase": "Succeeded"}}, content_type=MERGE).expect(200)
    api.http("DELETE", f"{path}/p").expect(200)
    api.http("GET", f"{path}/p").expect(404)


def test_a_collection_is_deleted_by_selector(api: Cluster, namespace: str, widgets: str) -> None:
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "1"}), ("c", {})):
        api.http("POST", widgets, widget(name, labels=labels)).expect(201)
    api.http("DELETE", f"{widgets}?labelSelector=x%3D1").expect(200)
    left = api.http("GET", widgets).expect(200)["items"]
    assert [item["metadata"]["name"] for item in left] == ["c"]


def test_a_deleted_namespace_takes_in_nothing_new_and_goes_when_empty(api: Cluster, namespace: str) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    api.http("POST", maps, configmap("held", finalizers=[FINALIZER])).expect(201)
    api.http("POST", maps, configmap("free")).expect(201)
    going = api.http("DELETE", f"/api/v1/namespaces/{namespace}").expect(200)
    assert going["status"]["phase"] == "Terminating"
    status = api.http("POST", maps, configmap("late")).expect(403)
    assert "because it is being terminated" in status["message"]
    assert status["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    if not (api.is_embedded or api.has_controller_manager):
        pytest.skip("nobody empties namespaces here")
    eventually(lambda: api.http("GET", f"{maps}/free").status == 404)
    api.http("GET", f"/api/v1/namespaces/{namespace}").expect(200)
    api.http("PATCH", f"{maps}/held", {"metadata": {"finalizers": None}}, content_type=MERGE).expect(200)
    eventually(lambda: api.http("GET", f"/api/v1/namespaces/{namespace}").status == 404)
