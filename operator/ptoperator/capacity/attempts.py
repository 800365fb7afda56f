"""Attempts at capacity: which option in which zone is tried, for how long, and what comes next. Pure.

An attempt is one option in one zone. It is written into status before anything is created for it, and it ends before
anything is created for the next one. So after a crash every existing pool belongs to the open attempt or to none. After
the last candidate the list starts over, after a pause that doubles.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from ptapi.failures import FailureClass
from ptapi.spec import CapacityOption
from ptapi.status import CapacityAttempt, CapacityStatus, FailureStatus, NodePoolStatus
from ptkube import timestamps
from ptkube.backoff import pause_s
from ptoperator.capacity.cloud_errors import CloudFailure
from ptoperator.capacity.request import CapacityRequest, Decision
from ptoperator.capacity.waiting_line.fair_order import queue_of

USUAL_WAIT_S = 900
MAX_BACKOFF_S = 600.0
_MAX_ATTEMPTS = 64
_OUTCOME_LIMIT = 1000


@dataclass(frozen=True)
class Candidate:
    """One option in one zone; `existing` has no zone. wait_s: None waits without a limit."""

    entry: int
    option: CapacityOption
    zone: str
    wait_s: float | None

    @property
    def description(self) -> str:
        """`spot in us-east5-a`, `reservation r1 in us-east5-a`, `existing`."""
        name = f" {self.option.reservation}" if self.option.reservation else ""
        return f"{self.option.type}{name}{f' in {self.zone}' if self.zone else ''}"

    @property
    def is_ready_with_pods(self) -> bool:
        """Return True if only scheduled pods show that the chips are there.

        No pool is created, or it scales with its pods.
        """
        return self.option.type in ("existing", "flexStart")


def candidates(request: CapacityRequest) -> list[Candidate]:
    """Return every option in every zone, in the order of spec.capacity."""
    options = request.layout.job.spec.capacity
    zones = request.cloud.zones if request.cloud else ()
    choices = [
        (entry, option, zone)
        for entry, option in enumerate(options)
        for zone in ([""] if option.type == "existing" else option.zones or zones or [""])
    ]
    last = len(choices) - 1
    return [
        Candidate(entry, option, zone, option.wait_seconds or (None if at == last else USUAL_WAIT_S))
        for at, (entry, option, zone) in enumerate(choices)
    ]


def queue_at(request: CapacityRequest, candidate: Candidate) -> str:
    """Return the fair queue of a candidate; empty if it has none. Kueue orders jobs with `spec.queue`."""
    spec, settings = request.layout.job.spec, request.layout.settings
    if spec.queue or (candidate.option.type == "existing" and not settings.queue_existing):
        return ""
    return queue_of(candidate.option.type, candidate.option.reservation, candidate.zone, request.layout.accelerator)


def open_attempt(status: CapacityStatus) -> CapacityAttempt | None:
    """Return the attempt that obtains or holds chips now, or None."""
    last = status.attempts[-1] if status.attempts else None
    return last if last is not None and last.ended is None else None


def candidate_of(request: CapacityRequest, attempt: CapacityAttempt) -> Candidate | None:
    """Return the candidate of an attempt, or None if its option or zone is gone."""
    fitting = (each for each in candidates(request) if (each.entry, each.zone) == (attempt.entry, attempt.zone))
    return next(fitting, None)


def has_next(request: CapacityRequest, candidate: Candidate) -> bool:
    """Return True if the list has a candidate after this one."""
    return candidate != candidates(request)[-1]


def begin_attempt(request: CapacityRequest) -> Decision:
    """Write the next attempt into status; the next reconcile acts on it."""
    capacity, choices = request.capacity, candidates(request)
    last = capacity.attempts[-1] if capacity.attempts else None
    at = 0
    if last is not None and last.round == capacity.round:
        at = _next_index(choices, last)
    candidate = choices[min(at, len(choices) - 1)]
    attempt = CapacityAttempt(
        option=candidate.description,
        started=timestamps.to_text(request.now),
        entry=candidate.entry,
        zone=candidate.zone,
        round=capacity.round,
        priority=request.competing.priority if queue_at(request, candidate) else 0,
    )
    attempts = [*capacity.attempts, attempt][-_MAX_ATTEMPTS:]
    status = capacity.model_copy(update={"attempts": attempts, "retry_after": None})
    return Decision(False, status, message=f"trying {candidate.description}", is_soon=True)


def fail_attempt(request: CapacityRequest, cause: CloudFailure) -> Decision:
    """End the open attempt with a reason, and name the next candidate."""
    capacity, choices = request.capacity, candidates(request)
    attempt = open_attempt(capacity)
    assert attempt is not None
    at = _next_index(choices, attempt)
    age = timestamps.duration(timestamps.seconds_since(attempt.started, request.now) or 0.0)
    where = f" in {attempt.zone}" if attempt.zone else ""
    head = f"{cause.code}{where} after {age}"
    updates: dict[str, object] = {}
    failure = None
    if at < len(choices):
        following = f"trying {_next_description(choices[at], attempt)}"
    else:
        kinds = _kinds_of_round(capacity, cause)
        failure = _round_failure(request, kinds, cause, attempt)
        pause = pause_s(capacity.round + 1, request.layout.settings.capacity_backoff_seconds, MAX_BACKOFF_S)
        following = "no option is left" if failure else f"starting over in {timestamps.duration(pause)}"
        updates = {
            "round": capacity.round + 1,
            "retry_after": timestamps.to_text(request.now + timedelta(seconds=pause)),
        }
    details = f": {cause.message}" if cause.message and cause.kind is not FailureClass.STOCKOUT else ""
    outcome = f"{head}, {following}{details}"
    return _closed(request, attempt, outcome, str(cause.kind or ""), updates, failure)


def restart_attempts(request: CapacityRequest, why: str) -> Decision:
    """Start over without a pause, because chips that were there are lost."""
    attempt = open_attempt(request.capacity)
    assert attempt is not None
    return _closed(request, attempt, why, "", {"round": request.capacity.round + 1, "retry_after": None}, None)


def mark_ready(capacity: CapacityStatus, now: datetime) -> CapacityStatus:
    """Record that the chips of the open attempt are there."""
    attempt = open_attempt(capacity)
    if attempt is None or attempt.ready is not None:
        return capacity
    age = timestamps.duration(timestamps.seconds_since(attempt.started, now) or 0.0)
    done = attempt.model_copy(update={"ready": timestamps.to_text(now), "outcome": f"ready after {age}"})
    return capacity.model_copy(update={"attempts": [*capacity.attempts[:-1], done]})


def mark_scaling_up(capacity: CapacityStatus, now: datetime) -> CapacityStatus:
    """Record that a cluster autoscaler makes nodes for the open attempt."""
    attempt = open_attempt(capacity)
    assert attempt is not None
    growing = attempt.model_copy(update={"scaling_up": timestamps.to_text(now)})
    return capacity.model_copy(update={"attempts": [*capacity.attempts[:-1], growing]})


def record_pools(capacity: CapacityStatus, pools: tuple[str, ...]) -> CapacityStatus:
    """Record the pools that pods run on, in case a crash kept them out of status."""
    if not pools or {each.name for each in capacity.node_pools} == set(pools):
        return capacity
    known = [NodePoolStatus(slice=index, name=name) for index, name in enumerate(sorted(pools))]
    return capacity.model_copy(update={"node_pools": known})


def mark_released(capacity: CapacityStatus, now: datetime, *, left: bool) -> CapacityStatus:
    """Record that the job no longer holds chips. left: pools are still being deleted."""
    attempt = open_attempt(capacity)
    attempts = capacity.attempts
    if attempt is not None:
        outcome = f"{attempt.outcome}; released" if attempt.outcome else "released"
        attempts = [*attempts[:-1], attempt.model_copy(update={"ended": timestamps.to_text(now), "outcome": outcome})]
    pools = capacity.node_pools if left else []
    rounds = capacity.round + 1 if attempt is not None else capacity.round
    return capacity.model_copy(update={"attempts": attempts, "node_pools": pools, "round": rounds, "retry_after": None})


def timeout_failure(candidate: Candidate, attempt: CapacityAttempt, now: datetime) -> CloudFailure | None:
    """Return NOT_READY once the attempt has waited too long. The wait starts anew when its turn comes."""
    return CloudFailure(FailureClass.STOCKOUT, "NOT_READY", "") if wait_left_s(candidate, attempt, now) <= 0 else None


def wait_left_s(candidate: Candidate, attempt: CapacityAttempt, now: datetime) -> float:
    """Return how long the attempt may still wait; infinite without a limit."""
    age = timestamps.seconds_since(attempt.granted or attempt.started, now)
    return math.inf if candidate.wait_s is None or attempt.ready is not None or age is None else candidate.wait_s - age


def _next_index(choices: list[Candidate], attempt: CapacityAttempt) -> int:
    """Return the index of the candidate after an attempt, even if the attempt's zone is gone."""
    for at, each in enumerate(choices):
        if (each.entry, each.zone) == (attempt.entry, attempt.zone):
            return at + 1
    return next((at for at, each in enumerate(choices) if each.entry > attempt.entry), len(choices))


def _next_description(following: Candidate, attempt: CapacityAttempt) -> str:
    """Name only what changes: the zone, or the option."""
    if following.entry == attempt.entry:
        return following.zone
    return following.option.type if following.zone == attempt.zone else following.description


def _kinds_of_round(capacity: CapacityStatus, newest: CloudFailure) -> set[str]:
    """Return the failure classes of this round."""
    known = {each.failure_class for each in capacity.attempts if each.round == capacity.round and each.ended}
    return known | {str(newest.kind or "")}


def _round_failure(
    request: CapacityRequest, kinds: set[str], cause: CloudFailure, attempt: CapacityAttempt
) -> FailureStatus | None:
    """Return a failure if starting over is useless: only configuration errors, or the rounds are used up."""
    limit = request.layout.settings.capacity_rounds
    ready = [each.round for each in request.capacity.attempts if each.ready]
    rounds = request.capacity.round - (ready[-1] if ready else -1)
    where = f"{attempt.option}: {cause.code}"
    description = f"{where}: {cause.message}" if cause.message else where
    if kinds == {str(FailureClass.CONFIG_ERROR)}:
        return FailureStatus(
            failure_class=FailureClass.CONFIG_ERROR, message=f"no entry of spec.capacity works: {description}"
        )
    if limit and rounds >= limit:
        tried = f"spec.capacity was tried {rounds} times without chips; last, {description}"
        return FailureStatus(failure_class=cause.kind or FailureClass.UNKNOWN, message=tried)
    return None


def _closed(
    request: CapacityRequest,
    attempt: CapacityAttempt,
    outcome: str,
    kind: str,
    updates: dict[str, object],
    failure: FailureStatus | None,
) -> Decision:
    ended = attempt.model_copy(
        update={"ended": timestamps.to_text(request.now), "outcome": outcome[:_OUTCOME_LIMIT], "failure_class": kind}
    )
    attempts = [*request.capacity.attempts[:-1], ended]
    status = request.capacity.model_copy(update={"attempts": attempts, **updates})
    return Decision(False, status, message=f"{attempt.option}: {outcome}", failure=failure, is_soon=True)
