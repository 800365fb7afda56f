"""The server of a job that succeeded: its objects are made, and its state is reported. Pure.

Whether there is one was decided with the job's success (`status.serving`). The objects are made once and belong to the
job: they go with it. One that somebody deleted is made again.
"""

from dataclasses import replace

from ptapi.conditions import ConditionType, Reason
from ptapi.status import PostTrainJobStatus, ServeStatus
from ptkube.resources import POSTTRAINJOBS
from ptoperator.kube.actions import Create, Delete
from ptoperator.observe.observed_parts import ServerObjects
from ptoperator.observe.state import Observed
from ptoperator.plan.step_result import Plan
from ptoperator.render.serving.server import server_of
from ptoperator.status.builder import ConditionUpdate, differs, merge_conditions

_START_POLL_S = 15.0
_RETRY_S = 60.0
_LOOK_S = 600.0


def with_server(state: Observed, planned: Plan) -> Plan:
    """Return the plan of a finished job with what its server needs."""
    is_going = any(isinstance(action, Delete) and action.resource is POSTTRAINJOBS for action in planned.actions)
    if state.server is None or state.layout is None or is_going:
        return planned
    update, due = _progress(state, state.server)
    status = _status(state, planned.status or state.status, update)
    actions = () if state.rejection else tuple(Create(kind, body) for kind, body in state.server.missing)
    return replace(
        planned,
        actions=(*planned.actions, *actions),
        status=status if differs(state.status, status) else planned.status,
        requeue_after=min(each for each in (due, planned.requeue_after or due)),
    )


def _progress(state: Observed, objects: ServerObjects) -> tuple[ConditionUpdate, float]:
    """Return the condition Served, and the seconds until the server is looked at again."""
    assert state.layout is not None
    if state.rejection:
        return ConditionUpdate(False, Reason.CREATE_FAILED, state.rejection), _RETRY_S
    ready = ((objects.deployment or {}).get("status") or {}).get("readyReplicas") or 0
    made = server_of(state.layout)
    if ready or made.spec.replicas.min == 0:
        return ConditionUpdate(True, Reason.SERVER_READY, f"{made.url} answers as {made.model_name}"), _LOOK_S
    message = (
        f"Deployment {made.name} has no server that answers yet; `kubectl describe deployment {made.name}` says why"
    )
    return ConditionUpdate(False, Reason.SERVER_STARTING, message), _START_POLL_S


def _status(state: Observed, status: PostTrainJobStatus, update: ConditionUpdate) -> PostTrainJobStatus:
    assert state.layout is not None
    made = server_of(state.layout)
    conditions = merge_conditions(status.conditions, {ConditionType.SERVED: update}, state.job.generation, state.now)
    serve = ServeStatus(state="Ready" if update.holds else "Starting", url=made.url, model=made.model_name)
    return status.model_copy(update={"conditions": conditions, "serve": serve})
