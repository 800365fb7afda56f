"""What tests of a job's life do to it and see of it, in the small cluster in memory."""

from __future__ import annotations

import json

from tests.builders.operator.world import NAMESPACE, Operator, World, job_manifest

from ptapi.status import PostTrainJobStatus
from ptkube.resources import POSTTRAINJOBS

NAME = "llama"


def create(world: World, **spec: object) -> None:
    world.api.create(POSTTRAINJOBS, job_manifest(NAME, **spec))


def edit(world: World, **policy: object) -> None:
    world.api.patch(POSTTRAINJOBS, NAME, NAMESPACE, {"spec": {"runPolicy": policy}})


def status(world: World) -> PostTrainJobStatus:
    job = world.api.find(POSTTRAINJOBS, NAME)
    assert job is not None
    return PostTrainJobStatus.model_validate(job.get("status") or {})


def phase(world: World) -> str:
    return str(status(world).phase)


def condition(world: World, kind: str) -> tuple[str, str, str]:
    found = next(each for each in status(world).conditions if each.type == kind)
    return found.status, found.reason, found.message


def settle(operator: Operator) -> None:
    """Controllers and operator take turns until nothing moves; no pod starts or ends by itself."""
    for _ in range(6):
        operator.work()
        operator.world.run_jobsets()
        operator.world.collect()
        operator.world.reap()
    operator.work()


def bring_up(operator: Operator, **spec: object) -> None:
    """A job whose pods run and train."""
    create(operator.world, **spec)
    settle(operator)
    start(operator)


def start(operator: Operator) -> None:
    operator.world.tick(1)
    for pod in operator.world.unfinished:
        operator.world.start(pod)
    settle(operator)
    operator.world.tick(11)
    operator.world.progress(3)
    operator.work()


def exit_all(world: World, code: int, message: str = "") -> None:
    for pod in world.unfinished:
        world.exit(pod, code, message)


def said(exit_code: int, kind: str, message: str) -> str:
    return json.dumps({"exitCode": exit_code, "failureClass": kind, "message": message})


def events(world: World) -> list[tuple[str, str]]:
    return [(event["type"], event["reason"]) for event in world.api.kinds("Event")]
