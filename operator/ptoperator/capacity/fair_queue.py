"""Who comes next where several jobs want the same chips: one line per reservation and zone, and one per shape of slice
for nodes that are there. Pure.

A job stands in line through its open attempt: joined when that began, *granted* when its turn came, *ready* when its
chips were there. All of it stands in the jobs' statuses, so whoever reads the same jobs finds the same order.

The order: priority; then who was first already; then the namespace that holds fewest chips of the line; then age. Only
the first is ever let through, also where a smaller one behind it would fit: else small jobs would keep a large one
waiting for ever. It stays first until its turn has come, unless a higher priority joins.

Left out: jobs with `queue` (Kueue orders those), CPUs, and what jobs of other kinds take.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ptapi.accelerators import Slice, resolve
from ptapi.errors import SpecError
from ptkube import timestamps
from ptkube.resources import Manifest

STUCK_S = 60.0
"""A job whose pods have had no nodes for this long after its turn came shows that those nodes are taken."""
_EXACT = 20
"""Up to so many jobs ahead are counted exactly; of more, a change by one is no news."""


@dataclass(frozen=True)
class Claim:
    """One job in a line. hosts: VMs it needs. granted, first: when its turn came, when it came to the head of the
    line; empty before."""

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
        return not self.granted

    @property
    def is_asking(self) -> bool:
        """Its turn has come, its chips have not."""
        return bool(self.granted) and not self.is_ready


@dataclass(frozen=True)
class CompetingJobs:
    """Every claim there is. nodes: VMs of complete slices of the job's shape among the nodes that are there; None: not
    counted yet. priority: of the job's PriorityClass. created: when the job was made."""

    claims: tuple[Claim, ...] = ()
    nodes: int | None = None
    priority: int = 0
    created: str = ""


NO_COMPETITION = CompetingJobs()


@dataclass(frozen=True)
class QueuePosition:
    """Where a job stands. ahead: jobs that wait before it. held: VMs that others hold, or may ask for now. is_asked:
    somebody asks now."""

    is_now: bool
    ahead: int
    held: int
    is_asked: bool

    @property
    def is_first(self) -> bool:
        return self.ahead == 0


def queue_of(kind: str, reservation: str | None, zone: str, accelerator: Slice) -> str:
    """The line for an entry of spec.capacity; empty where nobody stands in line."""
    if accelerator.is_cpu:
        return ""
    if kind == "existing":
        return f"existing {accelerator.generation} {accelerator.topology}"
    return f"reservation {reservation} {zone}" if kind == "reservation" else ""


def options_of(job: Manifest) -> list[Manifest]:
    """spec.capacity, from the job as the API server has it; its default, where that was not filled in."""
    return (job.get("spec") or {}).get("capacity") or [{"type": "existing"}]


def accelerator_of(job: Manifest) -> Slice | None:
    """The job's chips, from the job as the API server has it; None for what does not exist, of which plan says why."""
    asked = (job.get("spec") or {}).get("accelerator") or {}
    try:
        return resolve(str(asked.get("type")), asked.get("topology"), int(asked.get("slices") or 1))
    except SpecError:
        return None


def claim_of(job: Manifest) -> Claim | None:
    """A job's claim, from the job as the API server has it."""
    spec, status = job.get("spec") or {}, job.get("status") or {}
    attempts = (status.get("capacity") or {}).get("attempts") or []
    options = options_of(job)
    if not attempts or attempts[-1].get("ended") or spec.get("queue"):
        return None
    attempt, entry = attempts[-1], int(attempts[-1].get("entry") or 0)
    if entry >= len(options) or options[entry].get("type") not in ("existing", "reservation"):
        return None
    accelerator = accelerator_of(job)
    if accelerator is None:
        return None
    option, meta = options[entry], job["metadata"]
    queue = queue_of(option["type"], option.get("reservation"), str(attempt.get("zone") or ""), accelerator)
    if not queue:
        return None
    return Claim(
        queue=queue,
        uid=str(meta["uid"]),
        namespace=str(meta["namespace"]),
        created=str(meta.get("creationTimestamp") or ""),
        hosts=accelerator.total_vms,
        priority=int(attempt.get("priority") or 0),
        granted=str(attempt.get("granted") or ""),
        first=str(attempt.get("first") or ""),
        is_ready=bool(attempt.get("ready")),
    )


def order(claims: Iterable[Claim]) -> list[Claim]:
    """Those that wait, in the order of their turns: each is chosen as if those before it held their chips already."""
    held = Counter[str]()
    rows: dict[str, list[Claim]] = {}
    for each in sorted(claims, key=_within, reverse=True):
        if each.is_waiting:
            rows.setdefault(each.namespace, []).append(each)
        else:
            held[each.namespace] += each.hosts
    heads = [(_between(row[-1], held[namespace]), row.pop()) for namespace, row in rows.items()]
    heapq.heapify(heads)
    found: list[Claim] = []
    while heads:
        _, following = heapq.heappop(heads)
        found.append(following)
        held[following.namespace] += following.hosts
        row = rows[following.namespace]
        if row:
            heapq.heappush(heads, (_between(row[-1], held[following.namespace]), row.pop()))
    return found


def queue_position(mine: Claim, competing: Iterable[Claim], total: int | None, now: datetime) -> QueuePosition:
    """Whether it is this job's turn. total: VMs of the line altogether; None where nobody knows, or of nodes that are
    there has counted them yet: then it may be.

    With a total, turns are given as long as all claims fit. Without one, and for one job more than the nodes that are
    there can take (an autoscaler may bring more), a turn is given while nobody else asks.
    """
    others = tuple(each for each in competing if each.queue == mine.queue and each.uid != mine.uid)
    waiting = order((*others, mine))
    ahead = next(at for at, each in enumerate(waiting) if each.uid == mine.uid)
    held = sum(each.hosts for each in others if not each.is_waiting)
    asking = [each for each in others if each.is_asking]
    is_existing = mine.queue.startswith("existing ")
    fits = is_existing if total is None else held + mine.hosts <= total
    if is_existing:
        fits = fits and not any((timestamps.seconds_since(each.granted, now) or 0.0) > STUCK_S for each in asking)
    may_try = (is_existing or total is None) and not asking
    return QueuePosition(ahead == 0 and (fits or may_try), ahead, held, bool(asking))


def ahead_message(ahead: int) -> str:
    """`3 ahead`, `40+ ahead`: what is far away is not news each time it moves."""
    if ahead <= _EXACT:
        return f"{ahead} ahead"
    digit = 10 ** (len(str(ahead)) - 1)
    return f"{ahead // digit * digit}+ ahead"


def first(queue: str, claims: Iterable[Claim]) -> str:
    """Uid of the job at the head of a line; empty if nobody waits there."""
    waiting = order(each for each in claims if each.queue == queue)
    return waiting[0].uid if waiting else ""


def _within(claim: Claim) -> tuple[Any, ...]:
    """Order within one namespace."""
    return (-claim.priority, claim.first or "~", claim.created, claim.uid)


def _between(claim: Claim, held: int) -> tuple[Any, ...]:
    """Order between the first of each namespace."""
    return (-claim.priority, claim.first or "~", held, claim.created, claim.uid)
