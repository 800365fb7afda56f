"""`spec.pod` and `spec.resources` on every kind of pod, over the administrator's defaults and the operator's."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.ptoperator.render.test_render import on

from ptkube.resources import Manifest
from ptoperator.kube import labels
from ptoperator.render import jobset, layout_of, preflight_job
from ptoperator.render.pods.overrides import SAFE_TO_EVICT
from ptoperator.render.tensorboard import tensorboard_deployment
from ptoperator.settings import Settings, SettingsError

PATHWAYS: Manifest = {"pathways": {"enabled": True}, "output": {"uri": "gs://bucket/runs"}}
POD: Manifest = {
    "labels": {"team": "a"},
    "annotations": {"example.com/bill": "42"},
    "securityContext": {"runAsUser": 1000, "supplementalGroups": [44]},
    "containerSecurityContext": {"capabilities": {"add": ["SYS_RESOURCE"]}},
    "hostNetwork": True,
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "shared", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}},
    "initContainers": [{"name": "fetch", "command": ["fetch"], "resources": {"limits": {"memory": "1Gi"}}}],
}
KINDS = ("trainer", "head", "worker", "preflight", "tensorboard")


def made(kind: str, settings: Settings | None = None, **spec: Any) -> Manifest:
    """The template of a pod of this kind, of a job on TPUs."""
    theirs = PATHWAYS if kind in ("head", "worker") else {"output": {"uri": "gs://bucket/runs"}}
    layout = layout_of(on("v6e-16", **theirs, **spec), settings or Settings())
    if kind == "preflight":
        return template_of(preflight_job(layout))
    if kind == "tensorboard":
        return template_of(tensorboard_deployment(layout))
    return template_of(jobset(layout)["spec"]["replicatedJobs"][int(kind == "worker")]["template"])


def template_of(document: Manifest) -> Manifest:
    template: Manifest = document["spec"]["template"]
    return template


APPLIES: dict[str, tuple[str, Any]] = {
    "labels": ("trainer head worker preflight", lambda pod: pod["metadata"]["labels"].get("team") == "a"),
    "annotations": ("trainer head worker preflight",
                    lambda pod: (pod["metadata"].get("annotations") or {}).get("example.com/bill") == "42"),
    "groups": ("trainer head preflight",
               lambda pod: pod["spec"]["securityContext"].get("supplementalGroups") == [44]),
    "user": ("trainer head preflight", lambda pod: 1000 in [
        each.get("securityContext", {}).get("runAsUser") for each in (pod["spec"], pod["spec"]["containers"][0])]),
    "capabilities": ("trainer head worker preflight", lambda pod: pod["spec"]["containers"][0].get(
        "securityContext", {}).get("capabilities") == {"add": ["SYS_RESOURCE"], "drop": ["ALL"]}),
    "host network": ("trainer head worker", lambda pod: pod["spec"].get("hostNetwork") is True),
    "names": ("trainer head worker", lambda pod: pod["spec"].get("dnsPolicy") == "ClusterFirstWithHostNet"),
    "nodes": ("trainer worker", lambda pod: pod["spec"].get("nodeSelector", {}).get("disk") == "fast"),
    "tolerations": ("trainer head worker preflight",
                    lambda pod: {"key": "shared", "operator": "Exists"} in pod["spec"].get("tolerations", [])),
    "affinity": ("trainer worker", lambda pod: "podAntiAffinity" in pod["spec"].get("affinity", {})),
    "init containers": ("trainer head preflight", lambda pod: "fetch" in [
        each["name"] for each in pod["spec"].get("initContainers", [])]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("override", APPLIES)
def test_an_override_reaches_the_pods_that_it_is_for_and_no_other(override: str, kind: str) -> None:
    kinds, is_there = APPLIES[override]
    assert not is_there(made(kind))
    assert is_there(made(kind, pod=POD)) == (kind in kinds.split())


@pytest.mark.parametrize("kind", ["trainer", "head", "worker", "preflight"])
def test_what_finds_and_protects_a_pod_is_never_overridden(kind: str) -> None:
    bare, pod = made(kind), made(kind, pod=POD)
    assert bare["metadata"]["labels"].items() <= pod["metadata"]["labels"].items()
    assert bare["metadata"]["annotations"] == {SAFE_TO_EVICT: "false"}
    assert bare["spec"].get("nodeSelector", {}).items() <= pod["spec"].get("nodeSelector", {}).items()
    assert [each for each in bare["spec"].get("tolerations", []) if each not in pod["spec"]["tolerations"]] == []
    for field in ("restartPolicy", "automountServiceAccountToken", "serviceAccountName", "volumes", "hostPID"):
        assert bare["spec"].get(field) == pod["spec"].get(field)
    evictable = made(kind, pod={"annotations": {SAFE_TO_EVICT: "true"}})
    assert evictable["metadata"]["annotations"][SAFE_TO_EVICT] == "true"


def test_the_headless_head_has_the_servers_network_and_marks_and_no_init_container() -> None:
    overrides = {**POD, "nodeSelector": {}}
    spec = {"pathways": {"enabled": True, "headless": True}, "output": PATHWAYS["output"], "pod": overrides}
    head = template_of(jobset(layout_of(on("v6e-16", **spec), Settings()))["spec"]["replicatedJobs"][0]["template"])
    assert head["metadata"]["labels"]["team"] == "a"
    assert head["spec"]["hostNetwork"] is True
    assert {"key": "shared", "operator": "Exists"} in head["spec"]["tolerations"]
    assert "initContainers" not in head["spec"]


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ({"runAsUser": 0}, {"runAsNonRoot": False, "runAsUser": 0}),
        ({"privileged": True}, {"privileged": True}),
        ({"capabilities": {"add": ["SYS_ADMIN"]}}, {"capabilities": {"add": ["SYS_ADMIN"], "drop": ["ALL"]}}),
        ({"capabilities": {"drop": []}}, {"allowPrivilegeEscalation": False, "capabilities": {}}),
        ({"readOnlyRootFilesystem": True}, {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
                                            "readOnlyRootFilesystem": True}),
    ],
)  # fmt: skip
def test_a_container_has_no_default_that_kubernetes_refuses_with_what_it_asks(
    context: Manifest, expected: Manifest
) -> None:
    pod = made("trainer", pod={"containerSecurityContext": context})["spec"]
    defaults = {} if set(context) & {"privileged", "capabilities"} else {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}  # fmt: skip
    assert pod["containers"][0]["securityContext"] == {**defaults, **expected}


def test_root_by_the_pods_context_may_start() -> None:
    assert made("trainer", pod={"securityContext": {"runAsUser": 0}})["spec"]["securityContext"] == {
        "runAsNonRoot": False,
        "runAsUser": 0,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_an_init_container_runs_as_the_trainer_does_and_sees_the_volumes_that_it_mounts() -> None:
    wanted = {
        "name": "fetch",
        "args": ["a"],
        "image": "registry.example/fetch",
        "restartPolicy": "Always",
        "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s"}}}],
        "volumeMounts": [{"name": "work", "mountPath": "/w", "subPath": "x"}],
        "securityContext": {"readOnlyRootFilesystem": True},
    }
    volumes = [{"name": "work", "mountPath": "/mnt/work", "emptyDir": {}}]
    for kind in ("trainer", "preflight"):
        (rendered,) = made(kind, pod={"initContainers": [wanted]}, volumes=volumes)["spec"]["initContainers"]
        assert rendered == {
            "name": "fetch",
            "image": "registry.example/fetch",
            "args": ["a"],
            "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}],
            "volumeMounts": [{"name": "work", "mountPath": "/w", "subPath": "x", "readOnly": False}],
            "restartPolicy": "Always",
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            },
        }
    head = made("head", pod={"initContainers": [wanted]}, volumes=volumes)["spec"]["initContainers"]
    assert [each["name"] for each in head] == ["fetch", "pathways-rm", "pathways-proxy"]
    assert head[0]["securityContext"]["runAsUser"] == 65532


def test_the_jobs_own_pools_are_required_in_each_term_of_its_affinity() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    layout = replace(layout_of(on("v6e-16", pod={"affinity": affinity}), Settings()), pools=("p-1", "p-0"))
    pod = template_of(jobset(layout)["spec"]["replicatedJobs"][0]["template"])["spec"]
    rendered = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    pools = {"key": labels.NODE_POOL, "operator": "In", "values": ["p-0", "p-1"]}
    assert [term["matchExpressions"][1] for term in rendered] == [pools, pools]
    assert [term["matchExpressions"][0]["values"] for term in rendered] == [["a"], ["b"]]


ROLES = (
    ("trainer", "trainer", "trainer"),
    ("trainer", "head", "trainer"),
    ("preflight", "preflight", "preflight"),
    ("pathwaysResourceManager", "head", "pathways-rm"),
    ("pathwaysProxy", "head", "pathways-proxy"),
    ("pathwaysWorker", "worker", "pathways-worker"),
    ("colocatedPython", "worker", "colocated-python-sidecar"),
)


@pytest.mark.parametrize(("role", "kind", "container"), ROLES)
def test_resources_reach_the_container_that_they_are_for(role: str, kind: str, container: str) -> None:
    wanted = {"requests": {"cpu": "3"}, "limits": {"memory": "7Gi", "ephemeral-storage": "1Ti"}}
    sidecar: Manifest = {"colocatedPythonImage": "python:3"} if role == "colocatedPython" else {}
    pathways = {"pathways": {"enabled": True, **sidecar}} if kind in ("head", "worker") else {}
    spec = {"resources": {role: wanted}, "output": PATHWAYS["output"], **pathways}
    layout = layout_of(on("v6e-16", **spec), Settings())
    document = preflight_job(layout) if kind == "preflight" else jobset(layout)["spec"]["replicatedJobs"][
        int(kind == "worker")]["template"]  # fmt: skip
    pod = template_of(document)["spec"]
    (rendered,) = (each for each in [*pod.get("initContainers", []), *pod["containers"]] if each["name"] == container)
    limits = rendered["resources"]["limits"]
    assert {name: limits[name] for name in limits if name not in ("google.com/tpu", "cpu")} == wanted["limits"]
    assert rendered["resources"]["requests"] == {"cpu": "3"}
    assert limits.get("google.com/tpu") == (
        4 if container in ("trainer", "pathways-worker") and kind != "head" else None
    )


@pytest.mark.parametrize(
    ("accelerator", "queue", "requested", "allowed"),
    [
        ("v6e-16", None, {"cpu": "153", "memory": "612G"}, {"memory": "684G", "google.com/tpu": 4}),
        ("v5p-128", None, {"cpu": "176", "memory": "380G"}, {"memory": "425G", "google.com/tpu": 4}),
        ("v5e-1", None, {"cpu": "20", "memory": "40G"}, {"memory": "45G", "google.com/tpu": 1}),
        ("tpu7x-16", None, {"cpu": "95", "memory": "408G"}, {"memory": "456G", "google.com/tpu": 2}),
        ("v4-16", None, None, {"google.com/tpu": 4}),
        ("v6e-1", None, None, {"google.com/tpu": 1}),
        ("v6e-16", "team-a", None, {"google.com/tpu": 4}),
        ("cpu-8", None, {"cpu": "500m", "memory": "1Gi"}, None),
    ],
)
def test_a_trainer_asks_for_most_of_a_machine_of_known_size(
    accelerator: str, queue: str | None, requested: Manifest | None, allowed: Manifest | None
) -> None:
    layout = layout_of(on(accelerator, **({"queue": queue} if queue else {})), Settings())
    pod = template_of(jobset(layout)["spec"]["replicatedJobs"][0]["template"])["spec"]
    for container in pod["containers"]:
        assert container["resources"].get("requests") == requested
        assert container["resources"].get("limits") == allowed


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"limits": {"memory": "2Gi"}}, {"requests": {"cpu": "500m"}, "limits": {"memory": "2Gi"}}),
        ({"requests": {"cpu": 4}}, {"requests": {"cpu": 4, "memory": "1Gi"}}),
        ({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}},
         {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}),
    ],
)  # fmt: skip
def test_a_resource_that_is_named_replaces_its_default_request_and_limit(
    resources: Manifest, expected: Manifest
) -> None:
    layout = layout_of(on("cpu-1", resources={"trainer": resources}), Settings())
    pod = template_of(jobset(layout)["spec"]["replicatedJobs"][0]["template"])["spec"]
    assert pod["containers"][0]["resources"] == expected


def test_the_jobs_words_stand_over_the_administrators() -> None:
    settings = Settings.from_env(
        {
            "POSTTRAIN_TRAINER_POD": json.dumps({**POD, "labels": {"team": "all", "cost": "1"}}),
            "POSTTRAIN_TRAINER_RESOURCES": json.dumps({"trainer": {"requests": {"memory": "64Gi", "cpu": "8"}}}),
        }
    )
    theirs = {
        "labels": {"team": "b"},
        "hostNetwork": False,
        "containerSecurityContext": {"privileged": True},
        "tolerations": [{"key": "mine"}],
        "initContainers": [{"name": "fetch", "command": ["mine"]}],
    }
    pod = made("trainer", settings, pod=theirs, resources={"trainer": {"limits": {"memory": "32Gi"}}})
    assert {"team": "b", "cost": "1"}.items() <= pod["metadata"]["labels"].items()
    assert "hostNetwork" not in pod["spec"]
    assert "dnsPolicy" not in pod["spec"]
    assert [each["key"] for each in pod["spec"]["tolerations"]] == ["google.com/tpu", "shared", "mine"]
    assert [each["command"] for each in pod["spec"]["initContainers"]] == [["mine"]]
    container = pod["spec"]["containers"][0]
    assert container["securityContext"] == {
        "capabilities": {"add": ["SYS_RESOURCE"], "drop": ["ALL"]},
        "privileged": True,
    }
    assert container["resources"] == {"requests": {"cpu": "8"}, "limits": {"memory": "32Gi", "google.com/tpu": 4}}
    assert made("trainer", settings)["spec"]["hostNetwork"] is True


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("POSTTRAIN_TRAINER_POD", "{", "is not JSON"),
        ("POSTTRAIN_TRAINER_POD", '{"restartPolicy": "Always"}', "spec.pod has no field restartPolicy"),
        ("POSTTRAIN_TRAINER_POD", '{"labels": {"posttrain.dev/job": "a"}}', "not those of posttrain"),
        ("POSTTRAIN_TRAINER_RESOURCES", '{"trainer": {"limits": {"cpu": "a lot"}}}', "a quantity such as"),
    ],
)
def test_a_default_that_no_job_could_have_is_refused_when_the_operator_starts(
    variable: str, text: str, words: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({variable: text})
    assert str(caught.value).startswith(f"{variable}: ")
    assert words in str(caught.value)
