"""Standing in line for chips that several jobs want: what that means for an attempt. Pure.

An attempt at a reservation, or at nodes that are there, is open while the job waits for its turn, so its time counts.
A turn is written into status before anything is made. See `line` for the order.
"""

from __future__ import annotations

from ptapi.failures import FailureClass
from ptapi.status import CapacityAttempt, CapacityStatus
from ptkube import timestamps
from ptoperator.capacity.attempts import Candidate, give_up, has_next, line_at, overdue
from ptoperator.capacity.cloud_errors import Trouble
from ptoperator.capacity.fair_queue import Claim, Turn, counted, turn
from ptoperator.capacity.request import Asked, Decision


def in_line(asked: Asked, attempt: CapacityAttempt, candidate: Candidate) -> Decision | None:
    """What to do while it is not yet the job's turn; None: it is, or nobody stands in line there."""
    line = line_at(asked, candidate)
    if not line or attempt.granted is not None:
        return None
    total = _total(asked, candidate)
    needed = asked.layout.accelerator.total_vms
    if candidate.option.type == "reservation" and total is not None and needed > total:
        return give_up(asked, _too_small(asked, candidate, total))
    found = turn(_claim(asked, line, attempt), asked.crowd.claims, total, asked.now)
    if found.is_now:
        return _granted(asked, attempt, candidate)
    if total is not None and candidate.option.type == "reservation" and _goes_on(asked, candidate):
        return give_up(asked, no_room(asked, candidate, total - found.held, needed))
    late = overdue(candidate, attempt, asked.now)
    if late is not None:
        return give_up(asked, Trouble(FailureClass.RESERVATION, "NO_TURN", _words(asked, candidate, found)))
    return _waiting(asked, attempt, candidate, found)


def no_room(asked: Asked, candidate: Candidate, free: int, needed: int) -> Trouble:
    """A reservation that has too little left. free, needed: VMs."""
    chips = asked.layout.accelerator.chips_per_vm
    message = (
        f"no free capacity in reservation {candidate.option.reservation}: {needed * chips} chips needed, "
        f"{max(0, free) * chips} free"
    )
    return Trouble(FailureClass.RESERVATION, "NO_FREE_CAPACITY", message)


def wanted_words(asked: Asked, candidate: Candidate) -> str:
    """`64 v5p chips of reservation r1`."""
    accelerator = asked.layout.accelerator
    chips = accelerator.total_chips
    where = f"of reservation {candidate.option.reservation}" if candidate.option.reservation else "of existing nodes"
    return f"{chips} {accelerator.generation} chip{'s' if chips > 1 else ''} {where}"


def _granted(asked: Asked, attempt: CapacityAttempt, candidate: Candidate) -> Decision:
    now = timestamps.to_text(asked.now)
    status = _with(asked, attempt, {"granted": now, "first": attempt.first or now})
    return Decision(False, status, message=f"trying {candidate.words}", is_soon=True, is_turn=True)


def _waiting(asked: Asked, attempt: CapacityAttempt, candidate: Candidate, found: Turn) -> Decision:
    """Who comes to the head stays there, so that a large job is not passed for ever."""
    updates = {"first": timestamps.to_text(asked.now)} if found.is_first and attempt.first is None else {}
    status = _with(asked, attempt, updates) if updates else asked.so_far
    return Decision(False, status, message=_words(asked, candidate, found), ahead=found.ahead)


def _words(asked: Asked, candidate: Candidate, found: Turn) -> str:
    total, chips = _total(asked, candidate), asked.layout.accelerator.chips_per_vm
    why = ""
    if total:
        why = f": {found.held * chips} of {total * chips} chips are taken"
    elif found.is_asked:
        why = ": another job asks for them now"
    return f"waiting for {wanted_words(asked, candidate)}, {counted(found.ahead)}{why}"


def _claim(asked: Asked, line: str, attempt: CapacityAttempt) -> Claim:
    layout = asked.layout
    return Claim(
        line=line,
        uid=layout.uid,
        namespace=layout.namespace,
        created=asked.crowd.created,
        hosts=layout.accelerator.total_vms,
        priority=attempt.priority,
        first=attempt.first or "",
    )


def _total(asked: Asked, candidate: Candidate) -> int | None:
    """VMs of the line altogether, where somebody knows."""
    if candidate.option.type == "existing":
        return asked.crowd.nodes
    known = asked.cloud.reservation if asked.cloud else None
    return known.hosts if known else None


def _goes_on(asked: Asked, candidate: Candidate) -> bool:
    """Whether to try what comes next rather than to wait: unless the entry says how long to wait."""
    return candidate.option.wait_seconds is None and has_next(asked, candidate)


def _too_small(asked: Asked, candidate: Candidate, total: int) -> Trouble:
    accelerator = asked.layout.accelerator
    words = (
        f"reservation {candidate.option.reservation} has {total * accelerator.chips_per_vm} chips, "
        f"{accelerator.total_chips} needed"
    )
    return Trouble(FailureClass.RESERVATION, "RESERVATION_TOO_SMALL", words)


def _with(asked: Asked, attempt: CapacityAttempt, updates: dict[str, str]) -> CapacityStatus:
    changed = attempt.model_copy(update=updates)
    return asked.so_far.model_copy(update={"attempts": [*asked.so_far.attempts[:-1], changed]})
