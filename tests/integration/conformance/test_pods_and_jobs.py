"""What the server itself does to pods, jobs, services, events and leases."""

from typing import Any

import pytest
from tests.builders.cluster.api_access import Cluster
from tests.builders.cluster.manifests import MERGE, STRATEGIC, pod


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


@pytest.fixture
def jobs(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


def job(name: str, pod_spec: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "example.com/i:1"}],
                         **(pod_spec or {})}}  # fmt: skip
    return {"metadata": {"name": name}, "spec": {"suspend": True, "template": template, **spec}}


def status_of(state: dict[str, Any], phase: str = "Running", restarts: int = 0) -> dict[str, Any]:
    container = {"name": "main", "image": "i", "imageID": "", "ready": False, "restartCount": restarts, "state": state}
    return {"status": {"phase": phase, "containerStatuses": [container]}}


def test_a_new_pod_is_pending_with_the_usual_defaults(api: Cluster, pods: str) -> None:
    body = pod("p")
    body["status"] = {"phase": "Running"}
    created = api.http("POST", pods, body).expect(201)
    assert created["status"]["phase"] == "Pending"
    assert created["status"]["qosClass"] == "BestEffort"
    spec = created["spec"]
    assert (spec["restartPolicy"], spec["dnsPolicy"], spec["terminationGracePeriodSeconds"]) == (
        "Always", "ClusterFirst", 30)  # fmt: skip
    assert spec["schedulerName"] == "default-scheduler"
    container = spec["containers"][0]
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["terminationMessagePath"] == "/dev/termination-log"
    assert container["terminationMessagePolicy"] == "File"
    assert {t["key"]: t["tolerationSeconds"] for t in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready": 300, "node.kubernetes.io/unreachable": 300}  # fmt: skip


def test_limits_are_requests_where_none_are_given(api: Cluster, pods: str) -> None:
    body = pod("p")
    body["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "2", "memory": "1Gi"}}
    created = api.http("POST", pods, body).expect(201)
    assert created["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "2", "memory": "1Gi"}
    assert created["status"]["qosClass"] == "Guaranteed"


@pytest.mark.parametrize(("spec", "words"), [
    ({"containers": []}, "spec.containers: Required value"),
    ({"containers": [{"image": "i"}]}, "spec.containers[0].name: Required value"),
    ({"containers": [{"name": "a", "image": "i"}, {"name": "a", "image": "i"}]},
     'spec.containers[1].name: Duplicate value: "a"'),
    ({"containers": [{"name": "a"}]}, "spec.containers[0].image: Required value"),
    ({"restartPolicy": "Sometimes"}, 'spec.restartPolicy: Unsupported value: "Sometimes"'),
    ({"containers": [{"name": "a", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
     'spec.containers[0].volumeMounts[0].name: Not found: "v"'),
])  # fmt: skip
def test_a_wrong_pod_is_refused(api: Cluster, pods: str, spec: dict[str, Any], words: str) -> None:
    status = api.http("POST", pods, pod("p", **spec)).expect(422)
    assert words in status["message"]


def test_unknown_fields_of_a_pod_are_refused_when_strict(api: Cluster, pods: str) -> None:
    body = pod("p", containers=[{"name": "a", "image": "i", "imagePolicy": "Always"}])
    status = api.http("POST", f"{pods}?fieldValidation=Strict", body).expect(400)
    assert 'unknown field "spec.containers[0].imagePolicy"' in status["message"]


def test_a_wrong_type_is_a_bad_request(api: Cluster, pods: str) -> None:
    status = api.http("POST", pods, pod("p", terminationGracePeriodSeconds="30")).expect(400)
    assert status["reason"] == "BadRequest"
    assert 'Pod in version "v1" cannot be handled as a Pod' in status["message"]


def test_the_spec_of_a_pod_is_frozen_but_for_a_few_fields(api: Cluster, pods: str) -> None:
    api.http("POST", pods, pod("p")).expect(201)
    for change in ({"nodeName": "n"}, {"containers": [{"name": "main", "image": "i", "command": ["x"]}]}):
        status = api.http("PATCH", f"{pods}/p", {"spec": change}, content_type=STRATEGIC).expect(422)
        assert "pod updates may not change fields other than" in status["message"]
    image = {"spec": {"containers": [{"name": "main", "image": "example.com/image:2"}]}}
    api.http("PATCH", f"{pods}/p", image, content_type=STRATEGIC).expect(200)
    api.http("PATCH", f"{pods}/p", {"spec": {"activeDeadlineSeconds": 60}}, content_type=MERGE).expect(200)
    api.http("PATCH", f"{pods}/p", {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE).expect(200)


def test_binding_gives_a_pod_its_node_once(api: Cluster, pods: str) -> None:
    api.http("POST", pods, pod("p", schedulerName="nobody")).expect(201)  # a real scheduler leaves it alone
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "some-node"}}
    api.http("POST", f"{pods}/p/binding", binding).expect(201)
    bound = api.http("GET", f"{pods}/p").expect(200)
    assert bound["spec"]["nodeName"] == "some-node"
    assert [(c["type"], c["status"]) for c in bound["status"]["conditions"]] == [("PodScheduled", "True")]
    assert "already assigned to node" in api.http("POST", f"{pods}/p/binding", binding).expect(409)["message"]


def test_pods_are_found_by_node_and_phase(api: Cluster, pods: str) -> None:
    api.http("POST", pods, pod("on", nodeName="node-of-" + pods.split("/")[4])).expect(201)
    api.http("POST", pods, pod("off", nodeSelector={"no": "such-node"})).expect(201)

    def selected(selector: str) -> list[str]:
        listed = api.http("GET", f"{pods}?fieldSelector={selector}").expect(200)["items"]
        return [item["metadata"]["name"] for item in listed]

    assert selected("spec.nodeName%3Dnode-of-" + pods.split("/")[4]) == ["on"]
    assert selected("spec.nodeName%3D") == ["off"]
    assert selected("status.phase%3DPending,metadata.name!%3Don") == ["off"]
    api.http("PATCH", f"{pods}/on/status", {"status": {"phase": "Running"}}, content_type=MERGE).expect(200)
    assert selected("status.phase%3DRunning") == ["on"]


def test_a_terminated_container_does_not_run_again(api: Cluster, pods: str) -> None:
    api.http("POST", pods, pod("p", nodeName="n", restartPolicy="Never")).expect(201)
    running = status_of({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
    api.http("PATCH", f"{pods}/p/status", running, content_type=MERGE).expect(200)
    ended = {"terminated": {"exitCode": 3, "reason": "Error", "message": "out of memory"}}
    stored = api.http("PATCH", f"{pods}/p/status", status_of(ended, "Failed"), content_type=MERGE).expect(200)
    assert stored["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == "out of memory"
    status = api.http("PATCH", f"{pods}/p/status", running, content_type=MERGE).expect(422)
    assert "may not be transitioned to non-terminated state" in status["message"]


def test_a_failed_container_restarts_where_the_policy_says_so(api: Cluster, pods: str) -> None:
    api.http("POST", pods, pod("p", nodeName="n", restartPolicy="OnFailure")).expect(201)
    failed, running = {"terminated": {"exitCode": 1}}, {"running": {}}
    for body in (status_of(failed), status_of(running, restarts=1)):
        api.http("PATCH", f"{pods}/p/status", body, content_type=MERGE).expect(200)
    done = {"terminated": {"exitCode": 0}}
    api.http("PATCH", f"{pods}/p/status", status_of(done, restarts=1), content_type=MERGE).expect(200)
    api.http("PATCH", f"{pods}/p/status", status_of(running, restarts=2), content_type=MERGE).expect(422)


def test_an_eviction_deletes_the_pod(api: Cluster, pods: str) -> None:
    api.http("POST", pods, pod("p", nodeSelector={"no": "such-node"})).expect(201)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    api.http("POST", f"{pods}/p/eviction", eviction).expect(201)
    api.http("GET", f"{pods}/p").expect(404)


def test_a_new_job_gets_defaults_a_selector_and_labels(api: Cluster, jobs: str) -> None:
    created = api.http("POST", jobs, job("j")).expect(201)
    spec, uid = created["spec"], created["metadata"]["uid"]
    assert (spec["parallelism"], spec["completions"], spec["backoffLimit"], spec["completionMode"]) == (
        1, 1, 6, "NonIndexed")  # fmt: skip
    assert spec["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    labels = {"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": "j",
              "controller-uid": uid, "job-name": "j"}  # fmt: skip
    assert spec["template"]["metadata"]["labels"] == labels
    assert created["status"] == {}


@pytest.mark.parametrize(("body", "words"), [
    (job("j", {"restartPolicy": "Always"}), "spec.template.spec.restartPolicy: Required value"),
    (job("j", parallelism=-1), "spec.parallelism: Invalid value: -1: must be greater than or equal to 0"),
    (job("j", completionMode="Sorted"), 'spec.completionMode: Unsupported value: "Sorted"'),
    (job("j", completionMode="Indexed", parallelism=2),
     "spec.completions: Required value: when completion mode is Indexed"),
    ({"metadata": {"name": "j"}, "spec": {}}, "spec.template.spec.containers: Required value"),
])  # fmt: skip
def test_a_wrong_job_is_refused(api: Cluster, jobs: str, body: dict[str, Any], words: str) -> None:
    assert words in api.http("POST", jobs, body).expect(422)["message"]


def test_template_selector_and_completions_of_a_job_are_immutable(api: Cluster, jobs: str) -> None:
    api.http("POST", jobs, job("j", suspend=False, parallelism=0)).expect(201)
    image = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "other"}]}}}}
    for change in (image, {"spec": {"completions": 5}}):
        status = api.http("PATCH", f"{jobs}/j", change, content_type=STRATEGIC).expect(422)
        assert "field is immutable" in status["message"]
    for change in ({"parallelism": 2}, {"suspend": True}, {"backoffLimit": 1}):
        api.http("PATCH", f"{jobs}/j", {"spec": change}, content_type=MERGE).expect(200)


def test_a_suspended_job_may_still_be_given_nodes(api: Cluster, jobs: str) -> None:
    api.http("POST", jobs, job("j")).expect(201)
    change = {"spec": {"template": {"spec": {"nodeSelector": {"pool": "a"}}}}}
    api.http("PATCH", f"{jobs}/j", change, content_type=MERGE).expect(200)


def test_a_finished_job_is_written_as_real_controllers_write_it(api: Cluster, jobs: str) -> None:
    if api.has_controller_manager:
        pytest.skip("its job controller writes the status itself")
    api.http("POST", jobs, job("j")).expect(201)
    bare = {"status": {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}}
    message = api.http("PATCH", f"{jobs}/j/status", bare, content_type=MERGE).expect(422)["message"]
    assert "completionTime is required for Complete jobs" in message
    assert "cannot set Complete=True condition without the SuccessCriteriaMet=true condition" in message
    bare = {"status": {"startTime": "2026-01-01T00:00:00Z", "conditions": [{"type": "Failed", "status": "True"}]}}
    message = api.http("PATCH", f"{jobs}/j/status", bare, content_type=MERGE).expect(422)["message"]
    assert "cannot set Failed=True condition without the FailureTarget=true condition" in message
    early, full = [{"type": "SuccessCriteriaMet", "status": "True"}], {"type": "Complete", "status": "True"}
    done = {"status": {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:01:00Z",
                       "succeeded": 1, "conditions": [*early, full]}}  # fmt: skip
    api.http("PATCH", f"{jobs}/j/status", done, content_type=MERGE).expect(200)
    undo = api.http("PATCH", f"{jobs}/j/status", {"status": {"conditions": early}}, content_type=MERGE).expect(422)
    assert "cannot disable the terminal Complete=True condition" in undo["message"]


def test_a_headless_service_has_no_address_and_others_one(api: Cluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/services"
    headless = {"metadata": {"name": "h"}, "spec": {"clusterIP": "None", "selector": {"a": "b"},
                                                    "publishNotReadyAddresses": True}}  # fmt: skip
    created = api.http("POST", path, headless).expect(201)
    assert (created["spec"]["clusterIP"], created["spec"]["type"]) == ("None", "ClusterIP")
    created = api.http("POST", path, {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}).expect(201)
    assert created["spec"]["clusterIP"].count(".") == 3
    assert created["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    assert "spec.ports: Required value" in api.http("POST", path, {"metadata": {"name": "x"}, "spec": {}}).text


def test_events_are_found_by_their_object_and_seen_through_both_groups(api: Cluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/events"
    event = {"metadata": {"generateName": "e-"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": namespace},
             "reason": "Started", "message": "it runs", "type": "Normal", "count": 1}  # fmt: skip
    name = api.http("POST", path, event).expect(201)["metadata"]["name"]
    events = api.http("GET", f"{path}?fieldSelector=involvedObject.name%3Dp,involvedObject.kind%3DPod").expect(200)
    assert [item["message"] for item in events["items"]] == ["it runs"]
    assert api.http("GET", f"{path}?fieldSelector=involvedObject.name%3Dq").expect(200)["items"] == []
    new = api.http("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events/{name}").expect(200)
    assert (new["note"], new["regarding"]["name"], new["reason"]) == ("it runs", "p", "Started")
    foreign = {**event, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "other"}}
    assert "involvedObject.namespace" in api.http("POST", path, foreign).expect(422)["message"]


def test_a_lease_takes_times_with_six_decimals_only(api: Cluster, namespace: str) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    def lease(time: str) -> dict[str, Any]:
        return {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15,
                                                    "renewTime": time}}  # fmt: skip

    assert api.http("POST", path, lease("2026-01-01T00:00:00Z")).expect(400)["reason"] == "BadRequest"
    created = api.http("POST", path, lease("2026-01-01T00:00:00.000001Z")).expect(201)
    assert created["spec"]["renewTime"] == "2026-01-01T00:00:00.000001Z"


def test_a_node_registers_with_its_status(api: Cluster, namespace: str) -> None:
    name = f"node-{namespace}"
    node = {"metadata": {"name": name, "labels": {"a": "b"}}, "status": {"capacity": {"cpu": "2"}}}
    try:
        assert api.http("POST", "/api/v1/nodes", node).expect(201)["status"]["capacity"] == {"cpu": "2"}
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        patched = api.http("PATCH", f"/api/v1/nodes/{name}/status", ready, content_type=STRATEGIC).expect(200)
        assert patched["status"]["capacity"] == {"cpu": "2"}
    finally:
        api.http("DELETE", f"/api/v1/nodes/{name}").expect(200)
