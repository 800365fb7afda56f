"""A planted token shows up nowhere: not in status, events, manifests, arguments or logs, whoever says it."""

import io
import json
import logging

import pytest
from tests.builders.operator.job_steps import bring_up, settle, termination
from tests.builders.operator.world import Operator, World

from ptkube.resources import PODS
from ptoperator.monitoring.logging import Redacting

TOKEN = "hf_PlantedTokenThatMustNotShow"
LEAK = f"401 Client Error: Authorization: Bearer {TOKEN} for https://user:{TOKEN}@registry.example/x?token={TOKEN}"
WITH_TOKEN = {
    "model": {"uri": "random://tiny", "tokenSecretRef": {"name": "hf", "key": "token"}},
    "env": [{"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "key"}}}],
}


def everything(world: World) -> str:
    """All that the operator writes; a pod's status is the kubelet's."""
    return json.dumps([item for (kind, _, _), item in world.api.objects.items() if kind != "Pod"])


@pytest.mark.parametrize("code", [1, 65, 71, 74])
def test_a_trainer_that_says_its_token_is_not_quoted(operator: Operator, world: World, code: int) -> None:
    bring_up(operator, **WITH_TOKEN)
    world.exit(
        world.unfinished[0], code, termination(code, "", LEAK) if code != 1 else f"Traceback\nHTTPError: {LEAK}\n"
    )
    settle(operator)
    assert "401 Client Error" in everything(world)
    assert TOKEN not in everything(world)
    assert "Planted" not in everything(world)


def test_registry_kubelet_node_and_run_directory_are_not_quoted(operator: Operator, world: World) -> None:
    bring_up(operator, **WITH_TOKEN)
    condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": LEAK}
    world.api.nodes["node-1"] = {"metadata": {"name": "node-1"}, "status": {"conditions": [condition]}}
    world.exit(world.unfinished[0], 1, "")
    world.files["file:///runs/llama/termination.json"] = termination(1, "Unknown", LEAK).encode()
    settle(operator)
    pod = world.unfinished[0]
    world.schedule(pod)
    waiting = {"reason": "ErrImagePull", "message": LEAK}
    pod["status"]["containerStatuses"] = [{"name": "trainer", "state": {"waiting": waiting}}]
    world.api.put(PODS, pod)
    settle(operator)
    world.tick(301)
    operator.work()
    settle(operator)
    assert "ErrImagePull: 401 Client Error" in everything(world)
    assert TOKEN not in everything(world)


def test_the_token_reaches_the_trainer_by_reference_alone(operator: Operator, world: World) -> None:
    bring_up(operator, **WITH_TOKEN)
    container = world.pods[0]["spec"]["containers"][0]
    env = {each["name"]: each for each in container["env"]}
    assert env["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hf", "key": "token"}}
    assert "value" not in env["WANDB_API_KEY"]
    assert TOKEN not in json.dumps(container)


def test_the_operators_log_does_not_repeat_it_either() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Redacting("%(message)s"))
    log = logging.Logger("test")
    log.addHandler(handler)
    try:
        raise ValueError(LEAK)
    except ValueError:
        log.exception("refused: %s", LEAK)
    assert "refused: 401" in stream.getvalue()
    assert "ValueError: 401" in stream.getvalue()
    assert TOKEN not in stream.getvalue()
