"""The server of a job's model: after a success that reached the bar, and for as long as the job exists."""

from typing import Any

import pytest
from tests.builders.operator.job_steps import NAME, bring_up, condition, end, fail_writes, settle, status
from tests.builders.operator.world import Operator, World

from ptkube.errors import NotFound
from ptkube.resources import DEPLOYMENTS, POSTTRAINJOBS, SERVICES
from ptoperator.settings import Settings

SERVED: dict[str, Any] = {
    "serve": {"tpu": "v6e-4", "bar": {"metric": "eval/accuracy", "atLeast": 0.8}},
    "data": {"train": {"uri": "gs://lab/train.jsonl"}, "eval": {"uri": "gs://lab/test.jsonl"}},
    "output": {"uri": "file:///runs"},
    "volumes": [{"name": "runs", "mountPath": "/runs", "persistentVolumeClaim": {"claimName": "runs"}}],
}
SERVER = f"{NAME}-serve"


def finish(operator: Operator, spec: dict[str, Any] = SERVED, **metrics: float) -> None:
    """A job that succeeds with these metrics of its last evaluation."""
    operator.settings = Settings(shared_filesystem=True, model_servers=operator.settings.model_servers)
    bring_up(operator, **spec)
    operator.world.progress(10, **metrics)
    end(operator, 0)


@pytest.mark.parametrize("kind", ["Deployment", "Service"])
def test_a_model_above_the_bar_is_served_by_what_the_job_owns(operator: Operator, world: World, kind: str) -> None:
    finish(operator, **{"eval/accuracy": 0.8})
    [made] = world.api.kinds(kind)
    assert made["metadata"]["name"] == SERVER
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("PostTrainJob", NAME, True)


def test_the_status_says_when_it_answers_and_where(operator: Operator, world: World) -> None:
    finish(operator, **{"eval/accuracy": 0.93})
    assert condition(world, "Served")[:2] == ("False", "ServerStarting")
    deployment = world.api.find(DEPLOYMENTS, SERVER)
    assert deployment is not None
    world.api.put(DEPLOYMENTS, {**deployment, "status": {"readyReplicas": 1}})
    world.tick(20)
    settle(operator)
    assert condition(world, "Served")[:2] == ("True", "ServerReady")
    serve = status(world).serve
    assert serve is not None
    assert (serve.state, serve.url, serve.model) == ("Ready", f"http://{SERVER}.team-a.svc:8000/v1", NAME)
    assert phase_of(world) == "Succeeded"


@pytest.mark.parametrize(
    ("bar", "metrics", "message"),
    [
        ({"atLeast": 0.8}, {"eval/accuracy": 0.79}, "eval/accuracy is 0.79; serve.bar: at least 0.8"),
        ({"atMost": 0.1}, {"eval/accuracy": 0.79}, "eval/accuracy is 0.79; serve.bar: at most 0.1"),
        ({"atLeast": 0.8}, {"eval/loss": 1.0}, "wants eval/accuracy of at least 0.8, and the run measured eval/loss"),
    ],
)
def test_a_model_below_the_bar_is_not_served_and_the_job_has_succeeded_all_the_same(
    operator: Operator, world: World, bar: dict[str, float], metrics: dict[str, float], message: str
) -> None:
    serve = {"tpu": "v6e-4", "bar": {"metric": "eval/accuracy", **bar}}
    finish(operator, {**SERVED, "serve": serve}, **metrics)
    holds, reason, words = condition(world, "Served")
    assert (holds, reason, message in words) == ("False", "BarNotMet", True)
    assert world.api.kinds("Deployment") == world.api.kinds("Service") == []
    assert phase_of(world) == "Succeeded"


def test_a_job_that_failed_is_not_served(operator: Operator, world: World) -> None:
    bring_up(operator, **SERVED)
    end(operator, 64)
    assert phase_of(world) == "Failed"
    assert world.api.kinds("Deployment") == []
    assert [each for each in status(world).conditions if each.type == "Served"] == []


def test_an_operator_that_may_not_serve_says_so(operator: Operator, world: World) -> None:
    operator.settings = Settings(model_servers=False)
    finish(operator, **{"eval/accuracy": 1.0})
    assert condition(world, "Served")[:2] == ("False", "ServersOff")
    assert "servers.enabled=true" in condition(world, "Served")[2]
    assert world.api.kinds("Deployment") == []


def test_a_kind_that_the_cluster_lacks_is_named_and_tried_again(operator: Operator, world: World) -> None:
    mend = fail_writes(world, "create", SERVICES, NotFound(404, "NotFound", "the server does not know services"))
    finish(operator, **{"eval/accuracy": 1.0})
    holds, reason, message = condition(world, "Served")
    assert (holds, reason) == ("False", "CreateFailed")
    assert f"create Service {SERVER}: the server does not know services" in message
    mend()
    world.tick(70)
    settle(operator)
    assert len(world.api.kinds("Service")) == 1
    assert condition(world, "Served")[1] == "ServerStarting"


def test_the_best_checkpoint_is_judged_where_it_is_exported(operator: Operator, world: World) -> None:
    best = {
        "checkpoint": {"best": {"metric": "eval/accuracy", "mode": "max"}},
        "export": {"checkpoint": "best"},
    }
    operator.settings = Settings(shared_filesystem=True)
    bring_up(operator, **{**SERVED, **best})
    operator.world.progress(10, best={"step": 5, "value": 0.9}, **{"eval/accuracy": 0.1})
    end(operator, 0)
    assert condition(world, "Served")[1] == "ServerStarting"


def phase_of(world: World) -> str:
    job = world.api.find(POSTTRAINJOBS, NAME)
    assert job is not None
    return str(job["status"]["phase"])
