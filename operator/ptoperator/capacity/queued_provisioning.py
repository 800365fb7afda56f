"""Queued provisioning: GKE brings all nodes of a slice at once, by a ProvisioningRequest. Pure.

The pool stays empty meanwhile and there are no pods, so nothing is paid for. The pool is recorded before the request is
created, so that after a crash a job that may have a request knows its pool, and releases both.
"""

from dataclasses import replace

from ptapi.failures import FailureClass
from ptapi.status import CapacityAttempt, CapacityStatus
from ptkube.resources import POD_TEMPLATES, PROVISIONING_REQUESTS
from ptoperator.capacity import cloud_errors
from ptoperator.capacity.attempts import Candidate, fail_attempt, restart_attempts, timeout_failure
from ptoperator.capacity.cloud_errors import CloudFailure
from ptoperator.capacity.provisioning_request_state import ProvisioningRequestState
from ptoperator.capacity.request import CapacityRequest, Decision
from ptoperator.kube.actions import Create
from ptoperator.render import Layout
from ptoperator.render.provisioning_request import pods_to_come, provisioning_request


def wait_for_nodes(
    request: CapacityRequest, capacity: CapacityStatus, attempt: CapacityAttempt, candidate: Candidate
) -> Decision | None:
    """Wait until GKE has brought all nodes of the pools in `capacity`; None once it has."""
    provisioning, now = request.provisioning, replace(request, capacity=capacity)
    if attempt.ready is not None:
        lost = provisioning.revoked or ("" if provisioning.request else "its ProvisioningRequest was deleted")
        return restart_attempts(now, f"{attempt.outcome}; then {lost}") if lost else None
    refusal = _refusal(request)
    if refusal is not None:
        return fail_attempt(now, refusal)
    if provisioning.is_provisioned:
        return None
    late = timeout_failure(candidate, attempt, request.now)
    if late is not None:
        return fail_attempt(now, late)
    if capacity != request.capacity:
        return Decision(False, capacity, message=f"{candidate.description}: the node pool is ready", is_soon=True)
    layout = replace(request.layout, pools=tuple(each.name for each in capacity.node_pools))
    message = f"{candidate.description}: {_waiting_message(layout, provisioning)}"
    return Decision(
        False, capacity, () if provisioning.is_being_deleted else _missing(layout, provisioning), message=message
    )


def _refusal(request: CapacityRequest) -> CloudFailure | None:
    """Return the failure if no nodes will come: GKE's, or the API server's that rejects the request."""
    refusal = request.provisioning.refusal
    if refusal is not None:
        return cloud_errors.of_outcome(*refusal)
    if request.rejection:
        return CloudFailure(FailureClass.CONFIG_ERROR, "PROVISIONING_REQUEST_REFUSED", request.rejection)
    return None


def _missing(layout: Layout, provisioning: ProvisioningRequestState) -> tuple[Create, ...]:
    """Create the template first: GKE reads it when it sees the request."""
    template = () if provisioning.template else (Create(POD_TEMPLATES, pods_to_come(layout)),)
    request = () if provisioning.request else (Create(PROVISIONING_REQUESTS, provisioning_request(layout)),)
    return (*template, *request)


def _waiting_message(layout: Layout, provisioning: ProvisioningRequestState) -> str:
    name = f"ProvisioningRequest {layout.provisioning_request}"
    if provisioning.is_being_deleted:
        return f"{name} is being deleted"
    if provisioning.request is None:
        return f"{name} is requested"
    return f"{name}: {provisioning.latest_message or 'GKE has not responded yet'}"
