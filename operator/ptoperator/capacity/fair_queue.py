"""Order jobs that want the same chips. Pure.

There is one queue per reservation and zone, and one per shape of slice for existing nodes. A job queues through its
open attempt: it joins when the attempt starts, is *granted* when its turn comes, and is *ready* when its chips are
there. All of this is in the jobs' statuses, so everybody who reads the same jobs finds the same order.

The order: priority; then who was first before; then the namespace that holds the fewest chips of the queue; then age.
Only the first job gets its turn, even if a smaller one behind it would fit: otherwise small jobs would keep a large one
waiting for ever. It stays first until its turn comes, unless a job of higher priority joins.

Left out: jobs with `queue` (Kueue orders those), CPUs, and what other workloads take.
"""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ptapi.accelerators import Slice
from ptkube import timestamps
from ptoperator.job import JobObject

STUCK_S = 60.0
"""A job whose pods have had no nodes for this long after its turn came shows that those nodes are taken."""
_EXACT = 20
"""Up to so many jobs ahead are counted exactly; of more, a change by one is no news."""


@dataclass(frozen=True)
class Claim:
    """One job in a queue.

    hosts: VMs it needs. granted: when its turn came; first: when it reached the head of the queue; both empty before.
    """

    queue: str
    uid: str
    namespace: str
    created: str
    hosts: int
    priority: int = 0
    granted: str = ""
    first: str = ""
    is_ready: bool = False

    @property
    def is_waiting(self) -> bool:
        """Return True until the job's turn comes."""
        return not self.granted

    @property
    def is_provisioning(self) -> bool:
        """Return True after the job's turn came, until its chips are there."""
        return bool(self.granted) and not self.is_ready


@dataclass(frozen=True)
class _Queue:
    """One queue in order. ahead: by the uid of each waiting job, how many wait before it."""

    claims: dict[str, Claim]
    ahead: dict[str, int]
    held: int
    provisioning: tuple[Claim, ...]


class Claims(tuple[Claim, ...]):
    """Claims at one moment. A queue is put in order once, whoever asks: of thousands of jobs each does."""

    def __init__(self, claims: Iterable[Claim] = ()) -> None:
        self._queues: dict[str, _Queue] = {}

    def queue(self, name: str) -> _Queue:
        """Return one queue."""
        if name not in self._queues:
            claims = [each for each in self if each.queue == name]
            self._queues[name] = _Queue(
                claims={each.uid: each for each in claims},
                ahead={each.uid: at for at, each in enumerate(order(claims))},
                held=sum(each.hosts for each in claims if not each.is_waiting),
                provisioning=tuple(each for each in claims if each.is_provisioning),
            )
        return self._queues[name]


@dataclass(frozen=True)
class CompetingJobs:
    """All claims.

    nodes: VMs in complete slices of the job's shape among the existing nodes; None: not counted yet. priority: that of
    the job's PriorityClass. created: when the job was created.
    """

    claims: Claims = field(default_factory=Claims)
    nodes: int | None = None
    priority: int = 0
    created: str = ""


NO_COMPETITION = CompetingJobs()


@dataclass(frozen=True)
class QueuePosition:
    """A job's position.

    ahead: jobs that wait before it. held: VMs that other jobs hold or may take now. is_contended: another job takes
    some now.
    """

    is_now: bool
    ahead: int
    held: int
    is_contended: bool

    @property
    def is_first(self) -> bool:
        """Return True at the head of the queue."""
        return self.ahead == 0


def queue_of(kind: str, reservation: str | None, zone: str, accelerator: Slice) -> str:
    """Return the queue for an entry of spec.capacity; empty if it has none."""
    if accelerator.is_cpu:
        return ""
    if kind == "existing":
        return f"existing {accelerator.generation} {accelerator.topology}"
    return f"reservation {reservation} {zone}" if kind == "reservation" else ""


def claim_of(job: JobObject) -> Claim | None:
    """Return the claim of a job, or None if it is in no queue."""
    attempts, accelerator = job.status.capacity.attempts, job.accelerator
    if not attempts or attempts[-1].ended or job.spec is None or job.spec.queue or accelerator is None:
        return None
    attempt = attempts[-1]
    option = job.capacity[attempt.entry] if attempt.entry < len(job.capacity) else None
    queue = queue_of(option.type, option.reservation, attempt.zone, accelerator) if option else ""
    if not queue:
        return None
    return Claim(
        queue=queue,
        uid=job.uid,
        namespace=job.namespace,
        created=job.created,
        hosts=accelerator.total_vms,
        priority=attempt.priority,
        granted=attempt.granted or "",
        first=attempt.first or "",
        is_ready=attempt.ready is not None,
    )


def order(claims: Iterable[Claim]) -> list[Claim]:
    """Return the waiting claims in the order of their turns, each as if those before it held their chips already."""
    held = Counter[str]()
    rows: dict[str, list[Claim]] = {}
    for each in sorted(claims, key=_within, reverse=True):
        if each.is_waiting:
            rows.setdefault(each.namespace, []).append(each)
        else:
            held[each.namespace] += each.hosts
    heads = [(_between(row[-1], held[namespace]), row.pop()) for namespace, row in rows.items()]
    heapq.heapify(heads)
    ordered: list[Claim] = []
    while heads:
        _, following = heapq.heappop(heads)
        ordered.append(following)
        held[following.namespace] += following.hosts
        row = rows[following.namespace]
        if row:
            heapq.heappush(heads, (_between(row[-1], held[following.namespace]), row.pop()))
    return ordered


def queue_position(mine: Claim, competing: Claims, total: int | None, now: datetime) -> QueuePosition:
    """Return the job's position, and whether its turn is now.

    total: VMs of the queue; None if unknown, or if the existing nodes are not counted yet: then the turn may come. With
    a total, turns are given while all claims fit. Without one, and for one job more than the existing nodes can take
    (an autoscaler may add more), a turn is given while no other job takes chips.
    """
    queue = competing.queue(mine.queue)
    if queue.claims.get(mine.uid) != mine:
        queue = Claims((*(each for each in competing if each.uid != mine.uid), mine)).queue(mine.queue)
    ahead, held, provisioning = queue.ahead[mine.uid], queue.held, queue.provisioning
    is_existing = mine.queue.startswith("existing ")
    fits = is_existing if total is None else held + mine.hosts <= total
    if is_existing:
        fits = fits and not any((timestamps.seconds_since(each.granted, now) or 0.0) > STUCK_S for each in provisioning)
    may_try = (is_existing or total is None) and not provisioning
    return QueuePosition(ahead == 0 and (fits or may_try), ahead, held, bool(provisioning))


def ahead_message(ahead: int) -> str:
    """Return `3 ahead` or `40+ ahead`: a far position is rounded, so that it does not change status each time."""
    if ahead <= _EXACT:
        return f"{ahead} ahead"
    digit = 10 ** (len(str(ahead)) - 1)
    return f"{ahead // digit * digit}+ ahead"


def first(queue: str, claims: Iterable[Claim]) -> str:
    """Return the uid of the job at the head of a queue; empty if none waits."""
    held = Counter[str]()
    heads: dict[str, Claim] = {}
    for each in claims:
        if each.queue != queue:
            continue
        if not each.is_waiting:
            held[each.namespace] += each.hosts
        elif each.namespace not in heads or _within(each) < _within(heads[each.namespace]):
            heads[each.namespace] = each
    return min(heads.values(), key=lambda each: _between(each, held[each.namespace])).uid if heads else ""


def _within(claim: Claim) -> tuple[Any, ...]:
    """Return the sort key within one namespace."""
    return (-claim.priority, claim.first or "~", claim.created, claim.uid)


def _between(claim: Claim, held: int) -> tuple[Any, ...]:
    """Return the sort key between the first jobs of each namespace."""
    return (-claim.priority, claim.first or "~", held, claim.created, claim.uid)
