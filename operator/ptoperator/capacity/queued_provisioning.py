"""Queued provisioning: GKE brings all nodes of a slice at once, by a ProvisioningRequest. Pure.

The pool stays empty meanwhile and there are no pods, so nothing is paid for. The pool is written down before the
request is made, so that whatever crashes, a job that may have a request knows of its pool, and gives back both.
"""

from __future__ import annotations

from dataclasses import replace

from ptapi.failures import FailureClass
from ptapi.status import CapacityAttempt, CapacityStatus
from ptkube.resources import POD_TEMPLATES, PROVISIONING_REQUESTS
from ptoperator.capacity import cloud_errors
from ptoperator.capacity.attempts import Candidate, give_up, overdue, start_again
from ptoperator.capacity.cloud_errors import Trouble
from ptoperator.capacity.provisioning_state import Booking
from ptoperator.capacity.request import Asked, Decision
from ptoperator.kube.actions import Create
from ptoperator.render import Layout
from ptoperator.render.provisioning_request import pods_to_come, provisioning_request


def until_booked(
    asked: Asked, so_far: CapacityStatus, attempt: CapacityAttempt, candidate: Candidate
) -> Decision | None:
    """What to do while GKE has not brought all nodes of the pools in so_far; None: it has."""
    booking, now = asked.booking, replace(asked, so_far=so_far)
    if attempt.ready is not None:
        lost = booking.revoked or ("" if booking.request else "its ProvisioningRequest was gone")
        return start_again(now, f"{attempt.outcome}; then {lost}") if lost else None
    refusal = _refusal(asked)
    if refusal is not None:
        return give_up(now, refusal)
    if booking.is_provisioned:
        return None
    late = overdue(candidate, attempt, asked.now)
    if late is not None:
        return give_up(now, late)
    if so_far != asked.so_far:
        return Decision(False, so_far, message=f"{candidate.words}: the node pool is there", is_soon=True)
    layout = replace(asked.layout, pools=tuple(each.name for each in so_far.node_pools))
    message = f"{candidate.words}: {_waiting_words(layout, booking)}"
    return Decision(False, so_far, () if booking.is_leaving else _missing(layout, booking), message=message)


def _refusal(asked: Asked) -> Trouble | None:
    """Why there will be no nodes: GKE's words, or the API server's, which does not take the request."""
    found = asked.booking.refusal
    if found is not None:
        return cloud_errors.of_outcome(*found)
    if asked.obstacle:
        return Trouble(FailureClass.CONFIG_ERROR, "PROVISIONING_REQUEST_REFUSED", asked.obstacle)
    return None


def _missing(layout: Layout, booking: Booking) -> tuple[Create, ...]:
    """The template first: GKE reads it when it sees the request."""
    template = () if booking.template else (Create(POD_TEMPLATES, pods_to_come(layout)),)
    request = () if booking.request else (Create(PROVISIONING_REQUESTS, provisioning_request(layout)),)
    return (*template, *request)


def _waiting_words(layout: Layout, booking: Booking) -> str:
    name = f"ProvisioningRequest {layout.provisioning_request}"
    if booking.is_leaving:
        return f"{name} is being deleted"
    if booking.request is None:
        return f"{name} is asked for"
    return f"{name}: {booking.news or 'not yet seen by GKE'}"
