"""TensorBoard in the cluster: one for all jobs of an output, with a pod only while somebody looks."""

import json
from datetime import timedelta

import pytest
from tests.builders.operator.job_steps import NAME, fail_writes, settle
from tests.builders.operator.world import NAMESPACE, Operator, World, job_manifest

from ptkube import timestamps
from ptkube.errors import Forbidden
from ptkube.resources import DEPLOYMENTS, HTTP_ROUTES, INGRESSES, POSTTRAINJOBS, SERVICES, Manifest
from ptoperator.kube import labels
from ptoperator.render.tensorboard import tensorboard_name
from ptoperator.settings import Settings, SettingsError

SERVED = {"tensorboard": {"server": True}, "output": {"uri": "gs://bucket/runs"}}
TENSORBOARD = tensorboard_name("gs://bucket/runs")


def create(operator: Operator, name: str = NAME, **spec: object) -> None:
    operator.world.api.create(POSTTRAINJOBS, job_manifest(name, **(spec or SERVED)))
    settle(operator)


def look(operator: Operator, name: str, seconds: float) -> None:
    """Somebody looks for so long."""
    mark(operator, name, timestamps.to_text(operator.world.api.now + timedelta(seconds=seconds)))


def mark(operator: Operator, name: str, until: str) -> None:
    body = {"metadata": {"annotations": {labels.TENSORBOARD_UNTIL: until}}}
    operator.world.api.patch(POSTTRAINJOBS, name, NAMESPACE, body)
    settle(operator)


def replicas(operator: Operator) -> int:
    """Of the deployment, once everybody has done their part."""
    settle(operator)
    count: int = deployment(operator.world)["spec"]["replicas"]
    return count


def deployment(world: World) -> Manifest:
    manifest = world.api.find(DEPLOYMENTS, TENSORBOARD)
    assert manifest is not None
    return manifest


def test_a_job_that_does_not_ask_gets_none(operator: Operator, world: World) -> None:
    create(operator, NAME, output={"uri": "gs://bucket/runs"})
    assert world.api.kinds("Deployment") == []
    assert world.api.kinds("Service") == []


def test_an_operator_without_servers_starts_none_and_links_the_run_directory(operator: Operator, world: World) -> None:
    operator.settings = Settings(tensorboard_servers=False)
    create(operator)
    assert world.api.kinds("Deployment") == world.api.kinds("Service") == []
    job = world.api.find(POSTTRAINJOBS, NAME)
    assert job["status"]["links"]["tensorboard"] == f"tensorboard --logdir gs://bucket/runs/{NAME}/tensorboard"


def test_a_refused_tensorboard_holds_up_nothing(operator: Operator, world: World) -> None:
    world.api.create(POSTTRAINJOBS, job_manifest(NAME, **SERVED))
    mend = fail_writes(world, "create", DEPLOYMENTS, Forbidden(403, "Forbidden", "exceeded quota: deployments"))
    operator.hear()
    operator.look((NAMESPACE, NAME))
    job = world.api.find(POSTTRAINJOBS, NAME)
    assert job["status"]["phase"] == "Provisioning"
    mend()
    settle(operator)
    assert len(world.api.kinds("Deployment")) == 1


def test_jobs_of_one_output_share_one_and_it_goes_with_the_last(operator: Operator, world: World) -> None:
    create(operator, "first")
    create(operator, "second")
    assert len(world.api.kinds("Deployment")) == 1
    for item in (*world.api.kinds("Deployment"), *world.api.kinds("Service")):
        assert [each["name"] for each in item["metadata"]["ownerReferences"]] == ["first", "second"]
    world.api.delete(POSTTRAINJOBS, "first")
    settle(operator)
    assert world.api.find(DEPLOYMENTS, TENSORBOARD) is not None
    world.api.delete(POSTTRAINJOBS, "second")
    settle(operator)
    assert world.api.kinds("Deployment") == []


def test_it_has_a_pod_only_while_somebody_looks(operator: Operator, world: World) -> None:
    create(operator)
    assert replicas(operator) == 0
    look(operator, NAME, 900)
    assert replicas(operator) == 1
    world.tick(890)
    assert replicas(operator) == 1
    world.tick(20)
    assert replicas(operator) == 0


def test_another_job_of_the_output_does_not_take_it_away(operator: Operator, world: World) -> None:
    create(operator, "first")
    create(operator, "second")
    look(operator, "first", 900)
    world.tick(700)
    assert replicas(operator) == 1
    look(operator, "second", 900)
    world.tick(300)
    assert replicas(operator) == 1
    world.tick(700)
    assert replicas(operator) == 0


def test_a_finished_job_can_still_be_looked_at(operator: Operator, world: World) -> None:
    create(operator)
    for pod in world.unfinished:
        world.exit(pod, 65)
    settle(operator)
    look(operator, NAME, 900)
    assert replicas(operator) == 1


def test_its_pod_reads_the_whole_output_without_any_right(operator: Operator, world: World) -> None:
    create(operator)
    pod = deployment(world)["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][:2] == ["--logdir", "gs://bucket/runs"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    service = world.api.find(SERVICES, TENSORBOARD)
    assert service["spec"]["selector"] == deployment(world)["spec"]["selector"]["matchLabels"]


def test_a_mark_that_is_no_time_changes_nothing(operator: Operator, world: World) -> None:
    create(operator)
    mark(operator, NAME, "soon")
    assert replicas(operator) == 0


def test_with_a_domain_it_has_a_host_of_its_own_that_goes_with_the_last_job(operator: Operator, world: World) -> None:
    ingress = {"domain": "tb.example.com", "className": "nginx", "annotations": {"a/b": "c"}, "tlsSecret": "wildcard"}
    operator.settings = Settings(tensorboard_ingress=json.dumps(ingress))
    create(operator, "first")
    create(operator, "second")
    made = world.api.find(INGRESSES, TENSORBOARD)
    assert made is not None
    host = f"{TENSORBOARD}.{NAMESPACE}.tb.example.com"
    assert made["spec"]["rules"][0]["host"] == host
    backend = made["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": TENSORBOARD, "port": {"name": "http"}}
    assert made["spec"]["ingressClassName"] == "nginx"
    assert made["spec"]["tls"] == [{"hosts": [host], "secretName": "wildcard"}]
    assert made["metadata"]["annotations"] == {"a/b": "c"}
    assert {each["name"] for each in made["metadata"]["ownerReferences"]} == {"first", "second"}
    job = world.api.find(POSTTRAINJOBS, "first")
    assert job["status"]["links"]["tensorboard"].startswith(f"https://{host} (while it is in use: ptctl workload")
    for name in ("first", "second"):
        world.api.delete(POSTTRAINJOBS, name)
    settle(operator)
    assert world.api.find(INGRESSES, TENSORBOARD) is None


def test_with_a_gateway_a_route_leads_to_it_in_place_of_an_ingress(operator: Operator, world: World) -> None:
    gateway = {"name": "shared", "namespace": "infra", "section": "https"}
    operator.settings = Settings(tensorboard_ingress=json.dumps({"domain": "tb.example.com", "gateway": gateway}))
    create(operator, "first")
    create(operator, "second")
    made = world.api.find(HTTP_ROUTES, TENSORBOARD)
    assert made["spec"] == {
        "parentRefs": [{"name": "shared", "namespace": "infra", "sectionName": "https"}],
        "hostnames": [f"{TENSORBOARD}.{NAMESPACE}.tb.example.com"],
        "rules": [{"backendRefs": [{"name": TENSORBOARD, "port": 6006}]}],
    }
    assert {each["name"] for each in made["metadata"]["ownerReferences"]} == {"first", "second"}
    assert world.api.kinds("Ingress") == []


def test_without_a_domain_there_is_no_ingress(operator: Operator, world: World) -> None:
    create(operator)
    assert world.api.kinds("Ingress") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"host": "x"}', "host is not a known key; accepted: "),
        ('{"gateway": {"nam": "x"}}', "nam is not a known key; accepted: "),
        ('{"className": "nginx", "gateway": {"name": "x"}}', "className and tlsSecret are for an Ingress"),
    ],
)
def test_a_wrong_ingress_setting_is_refused_at_start(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=f"POSTTRAIN_TENSORBOARD_INGRESS: {words}"):
        Settings.from_env({"POSTTRAIN_TENSORBOARD_INGRESS": text})
