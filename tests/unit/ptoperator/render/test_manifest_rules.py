"""Rules of others that every rendered manifest keeps: JobSet's webhook, the Job API, Pod Security.

Told from kubernetes-sigs/jobset v0.12 (pkg/webhooks/jobset_webhook.go), Kubernetes' validation of batch/v1, and the Pod
Security Standards. Checked over every example and every kind of job that has a golden file.
"""

import re
from collections.abc import Iterator

import pytest
from tests.unit.ptoperator.render.test_render import CASES, SETTINGS, job

from ptkube.resources import Manifest
from ptoperator.render import jobset, layout_of

DNS_1035 = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
RULE_NAME = re.compile(r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
ACTIONS = {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"}
REASONS = {"BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy"}
RESTRICTED_VOLUMES = {"configMap", "secret", "persistentVolumeClaim", "emptyDir", "projected", "downwardAPI", "csi"}


ON_HOSTS = "sft-v6e-pod"
"""The one that asks for the node's network."""


def made(name: str) -> Manifest:
    return jobset(layout_of(job(CASES[name]), SETTINGS))


def replicated(rendered: Manifest) -> list[Manifest]:
    jobs: list[Manifest] = rendered["spec"]["replicatedJobs"]
    return jobs


def pods(rendered: Manifest) -> Iterator[Manifest]:
    yield from (each["template"]["spec"]["template"]["spec"] for each in replicated(rendered))


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", []), *pod["containers"]]


@pytest.mark.parametrize("name", CASES)
def test_names_that_jobset_makes_are_dns_labels(name: str) -> None:
    rendered = made(name)
    own = rendered["metadata"]["name"]
    assert DNS_1035.match(own)
    for each in replicated(rendered):
        job_spec = each["template"]["spec"]
        longest = f"{own}-{each['name']}-{each['replicas'] - 1}-{job_spec['completions'] - 1}-xxxxx"
        assert DNS_1035.match(longest)
        assert len(longest) <= 63, longest


@pytest.mark.parametrize("name", CASES)
def test_policies_name_jobs_that_are_there_and_words_that_jobset_knows(name: str) -> None:
    rendered = made(name)
    spec, names = rendered["spec"], {each["name"] for each in replicated(rendered)}
    assert len(names) == len(replicated(rendered))
    assert set(spec["successPolicy"].get("targetReplicatedJobs", [])) <= names
    coordinator = spec.get("coordinator")
    if coordinator:
        label = f"{rendered['metadata']['name']}-{coordinator['replicatedJob']}-0-0.{rendered['metadata']['name']}"
        assert coordinator["replicatedJob"] in names
        assert len(label) <= 63, label
    if spec.get("startupPolicy", {}).get("startupPolicyOrder") == "InOrder":
        assert not any("dependsOn" in each for each in replicated(rendered))
    rules = spec["failurePolicy"]["rules"]
    assert len({rule["name"] for rule in rules}) == len(rules)
    for rule in rules:
        assert RULE_NAME.match(rule["name"])
        assert len(rule["name"]) <= 128
        assert rule["action"] in ACTIONS
        assert set(rule["onJobFailureReasons"]) <= REASONS
        assert all(re.compile(pattern) for pattern in rule["onJobFailureMessagePatterns"])


@pytest.mark.parametrize("name", CASES)
def test_jobs_are_valid(name: str) -> None:
    for each in replicated(made(name)):
        spec = each["template"]["spec"]
        assert spec["completionMode"] == "Indexed"
        assert spec["completions"] == spec["parallelism"] >= 1
        rules = spec["podFailurePolicy"]["rules"]
        assert spec["template"]["spec"]["restartPolicy"] == "Never", "a pod failure policy needs it"
        assert 1 <= len(rules) <= 20
        for rule in rules:
            values = rule.get("onExitCodes", {}).get("values", [])
            assert values == sorted(set(values))
            assert len(values) <= 255
            assert 0 not in values


@pytest.mark.parametrize("name", CASES)
def test_environment_names_and_mounts_fit_together(name: str) -> None:
    for pod in pods(made(name)):
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        names = [container["name"] for container in containers(pod)]
        assert len(set(names)) == len(names)
        for container in containers(pod):
            variables = [variable["name"] for variable in container.get("env", [])]
            assert len(set(variables)) == len(variables), container["name"]
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes
            requests, limits = (container.get("resources", {}).get(kind, {}) for kind in ("requests", "limits"))
            assert "google.com/tpu" not in requests or requests == limits


@pytest.mark.parametrize("name", CASES)
def test_pods_satisfy_pod_security_baseline(name: str) -> None:
    for pod in pods(made(name)):
        assert {"hostNetwork", "hostPID", "hostIPC"} & pod.keys() == ({"hostNetwork"} if name == ON_HOSTS else set())
        assert not any("hostPath" in volume for volume in pod.get("volumes", []))
        assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        assert "sysctls" not in pod["securityContext"]
        for container in containers(pod):
            context = container.get("securityContext", {})
            assert not context.get("privileged")
            assert not context.get("capabilities", {}).get("add")
            assert not any("hostPort" in port for port in container.get("ports", []))


@pytest.mark.parametrize("name", CASES)
def test_all_but_googles_servers_satisfy_restricted(name: str) -> None:
    """Pathways' resource manager, proxy, workers and sidecar bring users of their own; nothing else is left out."""
    for pod in pods(made(name)):
        assert all(RESTRICTED_VOLUMES & volume.keys() for volume in pod.get("volumes", []))
        for container in containers(pod):
            if container["name"].startswith(("pathways-", "colocated-python")):
                continue
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {**pod["securityContext"], **context}["runAsNonRoot"] is True


@pytest.mark.parametrize("name", CASES)
def test_every_pod_has_the_jobs_priority_grace_pull_secrets_and_no_kubernetes_token(name: str) -> None:
    spec = job(CASES[name]).spec
    for pod in pods(made(name)):
        assert pod.get("priorityClassName") == spec.priority_class_name
        assert pod["terminationGracePeriodSeconds"] == spec.run_policy.termination_grace_period_seconds
        assert [each["name"] for each in pod.get("imagePullSecrets", [])] == spec.image_pull_secrets
        assert pod["automountServiceAccountToken"] is False
