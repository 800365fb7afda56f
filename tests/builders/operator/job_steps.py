"""What tests of a job's life do to it and see of it, in the small cluster in memory."""

import json
from collections.abc import Callable

from tests.builders.operator.world import NAMESPACE, Operator, World, job_manifest

from ptapi.status import PostTrainJobStatus
from ptkube.errors import ApiError
from ptkube.resources import POSTTRAINJOBS, Resource

NAME = "llama"


def create(world: World, **spec: object) -> None:
    """Create the job."""
    world.api.create(POSTTRAINJOBS, job_manifest(NAME, **spec))


def edit(world: World, **policy: object) -> None:
    """Change the job's run policy."""
    world.api.patch(POSTTRAINJOBS, NAME, NAMESPACE, {"spec": {"runPolicy": policy}})


def fail_writes(world: World, verb: str, kind: Resource, error: ApiError) -> Callable[[], None]:
    """Let the API server answer a verb on a kind with an error; call the result to mend it."""
    working = getattr(world.api, verb)

    def fail(r: Resource, *rest: object, **more: object) -> object:
        if r is kind:
            raise error
        return working(r, *rest, **more)

    setattr(world.api, verb, fail)
    return lambda: setattr(world.api, verb, working)


def status(world: World) -> PostTrainJobStatus:
    """Return the job's status."""
    job = world.api.find(POSTTRAINJOBS, NAME)
    assert job is not None
    return PostTrainJobStatus.model_validate(job.get("status") or {})


def phase(world: World) -> str:
    """Return the job's phase."""
    return str(status(world).phase)


def condition(world: World, kind: str) -> tuple[str, str, str]:
    """Return the status, reason and message of a condition."""
    match = next(each for each in status(world).conditions if each.type == kind)
    return match.status, match.reason, match.message


def settle(operator: Operator) -> None:
    """Run controllers and operator until nothing changes; no pod starts or ends by itself."""
    for _ in range(6):
        operator.work()
        operator.world.run_jobsets()
        operator.world.collect()
        operator.world.reap()
    operator.work()


def begin(operator: Operator, **spec: object) -> None:
    """Create a job and settle."""
    create(operator.world, **spec)
    settle(operator)


def change(operator: Operator, **policy: object) -> None:
    """Change the job's run policy and settle."""
    edit(operator.world, **policy)
    settle(operator)


def end(operator: Operator, code: int, message: str = "") -> None:
    """Let every pod exit and settle."""
    exit_all(operator.world, code, message)
    settle(operator)


def bring_up(operator: Operator, **spec: object) -> None:
    """Create a job and let its pods run and train."""
    create(operator.world, **spec)
    start(operator)


def start(operator: Operator) -> None:
    """Settle, start the pods and let them train three steps."""
    settle(operator)
    operator.world.tick(1)
    for pod in operator.world.unfinished:
        operator.world.start(pod)
    settle(operator)
    operator.world.tick(11)
    operator.world.progress(3)
    operator.work()


def exit_all(world: World, code: int, message: str = "") -> None:
    """Let every pod exit."""
    for pod in world.unfinished:
        world.exit(pod, code, message)


def termination(exit_code: int, kind: str, message: str) -> str:
    """Return a termination message."""
    return json.dumps({"exitCode": exit_code, "failureClass": kind, "message": message})


def events(world: World) -> list[tuple[str, str]]:
    """Return the type and reason of every event."""
    return [(event["type"], event["reason"]) for event in world.api.kinds("Event")]
