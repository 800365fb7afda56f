"""Wait for a turn at chips that several jobs want. Pure.

An attempt at a reservation, or at existing nodes, is open while the job waits for its turn, so its time counts. A turn
is written into status before anything is created. See `fair_order` for the order.
"""

from ptapi.failures import FailureClass
from ptapi.status import CapacityAttempt, CapacityStatus
from ptkube import timestamps
from ptoperator.capacity.attempts import Candidate, fail_attempt, has_next, queue_at, timeout_failure, wait_left_s
from ptoperator.capacity.cloud_errors import CloudFailure
from ptoperator.capacity.request import CapacityRequest, Decision
from ptoperator.capacity.waiting_line.fair_order import QueuePosition, ahead_message, queue_position

_NEAR = 100
"""For each so many jobs ahead the pause between two looks grows by POSTTRAIN_QUEUE_SECONDS."""


def wait_for_turn(request: CapacityRequest, attempt: CapacityAttempt, candidate: Candidate) -> Decision | None:
    """Wait while it is not the job's turn; None if it is, or if there is no queue."""
    queue = queue_at(request, candidate)
    if not queue or attempt.granted is not None:
        return None
    total = _total(request, candidate)
    needed = request.layout.line_hosts
    if candidate.option.type == "reservation" and total is not None and needed > total:
        return fail_attempt(request, _too_small(request, candidate, total))
    assert request.competing.standing is not None
    position = queue_position(request.competing.standing, total, request.now)
    if position.is_now:
        return _granted(request, attempt, candidate)
    if total is not None and candidate.option.type == "reservation" and _goes_on(request, candidate):
        return fail_attempt(request, no_free_capacity(request, candidate, total - position.held, needed))
    late = timeout_failure(candidate, attempt, request.now)
    if late is not None:
        return fail_attempt(
            request, CloudFailure(FailureClass.RESERVATION, "NO_TURN", _waiting_reason(request, candidate, position))
        )
    return _waiting(request, attempt, candidate, position)


def no_free_capacity(request: CapacityRequest, candidate: Candidate, free: int, needed: int) -> CloudFailure:
    """Return the failure of a reservation with too little left. free, needed: VMs."""
    chips = request.layout.accelerator.chips_per_vm
    message = (
        f"no free capacity in reservation {candidate.option.reservation}: {needed * chips} chips needed, "
        f"{max(0, free) * chips} free"
    )
    return CloudFailure(FailureClass.RESERVATION, "NO_FREE_CAPACITY", message)


def wanted_chips(request: CapacityRequest, candidate: Candidate) -> str:
    """`64 v5p chips of reservation r1`."""
    accelerator = request.layout.accelerator
    chips = request.layout.line_hosts * accelerator.chips_per_vm
    where = f"of reservation {candidate.option.reservation}" if candidate.option.reservation else "of existing nodes"
    return f"{chips} {accelerator.generation} chip{'s' if chips > 1 else ''} {where}"


def _granted(request: CapacityRequest, attempt: CapacityAttempt, candidate: Candidate) -> Decision:
    now = timestamps.to_text(request.now)
    status = _with(request, attempt, {"granted": now, "first": attempt.first or now})
    return Decision(False, status, message=f"trying {candidate.description}", is_soon=True, is_turn=True)


def _waiting(
    request: CapacityRequest, attempt: CapacityAttempt, candidate: Candidate, position: QueuePosition
) -> Decision:
    """Wait, and keep the head of the queue once reached, so that a large job is not overtaken for ever."""
    updates = {"first": timestamps.to_text(request.now)} if position.is_first and attempt.first is None else {}
    status = _with(request, attempt, updates) if updates else request.capacity
    pause_s = min(_pause_s(request, position), wait_left_s(candidate, attempt, request.now))
    return Decision(False, status, message=_waiting_reason(request, candidate, position), in_line_s=pause_s)


def _pause_s(request: CapacityRequest, position: QueuePosition) -> float:
    """Return when to look again: later for those far behind, so that a long line costs what a short one does."""
    settings = request.layout.settings
    if position.is_first:
        return settings.cloud_poll_seconds
    return min(settings.queue_seconds * (1 + position.ahead // _NEAR), settings.resync_seconds)


def _waiting_reason(request: CapacityRequest, candidate: Candidate, position: QueuePosition) -> str:
    total, chips = _total(request, candidate), request.layout.accelerator.chips_per_vm
    why = ""
    if position.is_near and total:
        why = f": {position.held * chips} of {total * chips} chips are in use"
    elif position.is_near and position.is_contended:
        why = ": another job is taking them now"
    return f"waiting for {wanted_chips(request, candidate)}, {ahead_message(position.ahead)}{why}"


def _total(request: CapacityRequest, candidate: Candidate) -> int | None:
    """Return the VMs of the queue, or None if unknown."""
    if candidate.option.type == "existing":
        return request.competing.nodes
    known = request.cloud.reservation if request.cloud else None
    return known.hosts if known else None


def _goes_on(request: CapacityRequest, candidate: Candidate) -> bool:
    """Return True if the next candidate is better than waiting: unless the entry sets waitSeconds."""
    return candidate.option.wait_seconds is None and has_next(request, candidate)


def _too_small(request: CapacityRequest, candidate: Candidate, total: int) -> CloudFailure:
    accelerator = request.layout.accelerator
    description = (
        f"reservation {candidate.option.reservation} has {total * accelerator.chips_per_vm} chips, "
        f"{request.layout.line_hosts * accelerator.chips_per_vm} needed"
    )
    return CloudFailure(FailureClass.RESERVATION, "RESERVATION_TOO_SMALL", description)


def _with(request: CapacityRequest, attempt: CapacityAttempt, updates: dict[str, str]) -> CapacityStatus:
    changed = attempt.model_copy(update=updates)
    return request.capacity.model_copy(update={"attempts": [*request.capacity.attempts[:-1], changed]})
