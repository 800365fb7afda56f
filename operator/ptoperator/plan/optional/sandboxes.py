"""The run's sandboxes: claims are made while it runs, replaced within a budget, and given back. Pure.

A claim's number counts the claims made before it, so the budget holds whatever is deleted; the count is written to
status before the claims are made. Claims of the last minute are kept, even finished ones, so that they count, too.
Where Agent Sandbox is not served when the JobSet is made, the run goes without (`Layout.has_sandboxes`), and says so.
"""

from dataclasses import replace

from ptapi.conditions import ConditionType, Reason
from ptapi.spec.rollouts.sandbox import Sandbox
from ptapi.status import PostTrainJobStatus, SandboxesStatus
from ptkube import timestamps
from ptkube.objects import condition, holds, is_deleting
from ptkube.resources import SANDBOX_CLAIMS, SANDBOX_WARM_POOLS, Manifest
from ptoperator.kube import labels
from ptoperator.kube.actions import Action, Create, Patch, deletion
from ptoperator.observe.observed_parts import SandboxClaims
from ptoperator.observe.state import Observed
from ptoperator.plan.step_result import Plan
from ptoperator.render import Layout
from ptoperator.render.pods.sandboxes import sandbox_claim, sandbox_objects, sandbox_spec
from ptoperator.status.builder import ConditionUpdate, differs, merge_conditions

_MINUTE_S = 60.0
_FINISHED = "Finished"
"""Condition of a claim whose pod has ended."""


def with_sandboxes(state: Observed, planned: Plan, poll_s: float) -> Plan:
    """Return a job's plan with what its sandboxes need. poll_s: time between two looks at claims."""
    layout, claims = state.layout, state.sandboxes
    if layout is None or claims is None or layout.job.spec.sandbox is None:
        return planned
    base = planned.status or state.status
    if base.phase.is_terminal or not _is_running_with_sandboxes(state):
        actions = _released(layout, claims)
        status = _counted(base, claims, _created(state, claims)) if base.sandboxes or claims.items else base
        if not claims.is_served and not base.phase.is_terminal:
            status = _with_condition(state, status, _not_served(claims))
        return _joined(state, planned, status, actions, None)
    actions, status = _kept(state, base, layout, claims)
    return _joined(state, planned, status, actions, poll_s)  # nothing tells of a claim's end


def _kept(
    state: Observed, base: PostTrainJobStatus, layout: Layout, claims: SandboxClaims
) -> tuple[list[Action], PostTrainJobStatus]:
    """Make claims that are missing, and delete those whose pods have ended."""
    sandbox = sandbox_spec(layout)
    there = [claim for claim in claims.items if not is_deleting(claim)]
    ended = [claim for claim in there if holds(claim, _FINISHED) and not _is_young(claim, state)]
    created = _created(state, claims)
    young = sum(_is_young(claim, state) for claim in claims.items)
    count = max(
        0,
        min(
            sandbox.replicas - len(there),
            sandbox.max_created - created,
            sandbox.max_created_per_minute - young,
        ),
    )
    actions: list[Action] = [deletion(SANDBOX_CLAIMS, claim, layout.namespace) for claim in ended]
    if count:
        actions += [Create(kind, body) for kind, body in sandbox_objects(layout)]
        actions.append(_pool_of(layout, sandbox.warm))
        actions += [Create(SANDBOX_CLAIMS, sandbox_claim(layout, created + index)) for index in range(count)]
    status = _with_condition(
        state, _counted(base, claims, created + count), _readiness(sandbox, claims, created + count)
    )
    return actions, status


def _readiness(sandbox: Sandbox, claims: SandboxClaims, created: int) -> ConditionUpdate:
    ready = sum(holds(claim, "Ready") for claim in claims.items)
    if not claims.is_served:
        return _not_served(claims)
    if ready >= sandbox.replicas:
        return ConditionUpdate(True, Reason.SANDBOXES_READY, f"{sandbox.replicas} sandboxes are ready")
    counted = f"{ready} of {sandbox.replicas} sandboxes are ready"
    if created >= sandbox.max_created and len(claims.items) < sandbox.replicas:
        message = f"{counted}; sandbox.maxCreated is {sandbox.max_created}, and so many claims were made"
        return ConditionUpdate(False, Reason.SANDBOX_BUDGET_SPENT, message)
    waiting = (condition(claim, "Ready") for claim in claims.items if not holds(claim, "Ready"))
    why = next((str(each["message"]) for each in waiting if each and each.get("message")), "")
    return ConditionUpdate(False, Reason.SANDBOXES_STARTING, f"{counted}{f': {why}' if why else ''}")


def _not_served(claims: SandboxClaims) -> ConditionUpdate:
    message = (
        f"{claims.refusal}, so code rewards and Python tools run in processes of the trainer's pod; hint: Agent "
        "Sandbox in the cluster, and sandboxes.enabled=true in the operator's chart"
    )
    return ConditionUpdate(False, Reason.SANDBOXES_NOT_SERVED, message)


def _released(layout: Layout, claims: SandboxClaims) -> list[Action]:
    """Give everything back: the warm ones first, which would replace the others."""
    there = [claim for claim in claims.items if not is_deleting(claim)]
    if not there:
        return []
    return [_pool_of(layout, 0), *(deletion(SANDBOX_CLAIMS, claim, layout.namespace) for claim in there)]


def _pool_of(layout: Layout, replicas: int) -> Patch:
    return Patch(SANDBOX_WARM_POOLS, layout.sandboxes, layout.namespace, {"spec": {"replicas": replicas}})


def _is_running_with_sandboxes(state: Observed) -> bool:
    """Return True if the JobSet may have pods, and its trainer looks for sandboxes."""
    if state.jobset is None or not state.is_jobset_ours or state.is_jobset_deleting or state.is_jobset_suspended:
        return False
    return labels.SANDBOX in (state.jobset["metadata"].get("annotations") or {})


def _created(state: Observed, claims: SandboxClaims) -> int:
    """Return how many claims were made so far."""
    known = state.status.sandboxes.created if state.status.sandboxes else 0
    return max([known, *(_number(claim) + 1 for claim in claims.items)])


def _number(claim: Manifest) -> int:
    text = str(claim["metadata"]["name"]).rpartition("-")[2]
    return int(text) if text.isdigit() else -1


def _is_young(claim: Manifest, state: Observed) -> bool:
    age = timestamps.seconds_since(claim["metadata"].get("creationTimestamp"), state.now)
    return age is not None and age < _MINUTE_S


def _counted(status: PostTrainJobStatus, claims: SandboxClaims, created: int) -> PostTrainJobStatus:
    there = [claim for claim in claims.items if not is_deleting(claim)]
    counts = SandboxesStatus(total=len(there), ready=sum(holds(each, "Ready") for each in there), created=created)
    return status.model_copy(update={"sandboxes": counts})


def _with_condition(state: Observed, status: PostTrainJobStatus, update: ConditionUpdate) -> PostTrainJobStatus:
    updates = {ConditionType.SANDBOXES_READY: update}
    conditions = merge_conditions(status.conditions, updates, state.job.generation, state.now)
    return status.model_copy(update={"conditions": conditions})


def _joined(
    state: Observed, planned: Plan, status: PostTrainJobStatus, actions: list[Action], due_s: float | None
) -> Plan:
    """Return the plan with these actions and this status, and a look again in so many seconds."""
    made = replace(
        planned,
        status=status if planned.status is not None or differs(state.status, status) else None,
        optional=(*planned.optional, *actions),
    )
    if due_s is None:
        return made
    return replace(made, requeue_after=min(due_s, made.requeue_after or due_s), progress_only=False)
