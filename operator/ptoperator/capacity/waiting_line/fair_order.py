"""Order jobs that want the same chips. Pure.

There is one queue per reservation and zone, and one per shape of slice for existing nodes. A job queues through its
open attempt: it joins when the attempt starts, is *granted* when its turn comes, and is *ready* when its chips are
there. All of this is in the jobs' statuses, so everybody who reads the same jobs finds the same order.

The order: priority; then who was first before; then the namespace that holds the fewest chips of the queue; then age.
Only the first job gets its turn, even if a smaller one behind it would fit: otherwise small jobs would keep a large one
waiting for ever. It stays first until its turn comes, unless a job of higher priority joins.

Left out: jobs with `queue` (Kueue orders those), CPUs, and what other workloads take.
"""

from dataclasses import dataclass
from datetime import datetime

from ptapi.accelerators import Slice
from ptkube import timestamps
from ptoperator.job import JobObject

STUCK_S = 60.0
"""A job whose pods have had no nodes for this long after its turn came shows that those nodes are taken."""
HOPELESS_S = 300.0
"""One that wants more nodes than there are shows after so long that nobody makes them: it keeps no other one waiting.
An autoscaler speaks within a minute, and nodes that restart are back by then."""
_EXACT = 20
"""Up to so many jobs ahead are counted exactly; of more, a change by one is no news."""


@dataclass(frozen=True)
class Claim:
    """One job in a queue.

    hosts: VMs it needs. granted: when its turn came; first: when it reached the head of the queue; both empty before.
    is_scaling_up: a cluster autoscaler makes nodes for it, so it takes none of those that are there.
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
    is_scaling_up: bool = False

    @property
    def is_waiting(self) -> bool:
        """Return True until the job's turn comes."""
        return not self.granted

    @property
    def is_provisioning(self) -> bool:
        """Return True after the job's turn came, until its chips are there, or an autoscaler makes them."""
        return self.takes_chips and not self.is_ready

    @property
    def takes_chips(self) -> bool:
        """Return True if the job holds chips of the queue, or may take some now."""
        return bool(self.granted) and (self.is_ready or not self.is_scaling_up)


@dataclass(frozen=True)
class Turn:
    """The turn of a job that has no chips yet. granted: when it came; hosts: VMs that the job needs."""

    granted: str
    hosts: int

    def is_hopeless(self, total: int | None, now: datetime) -> bool:
        """Return True if the job waits for nodes that nobody makes. total: VMs there are; None: not counted yet."""
        is_larger = total is None or self.hosts > total
        return is_larger and (timestamps.seconds_since(self.granted, now) or 0.0) > HOPELESS_S


@dataclass(frozen=True)
class Standing:
    """Where a waiting job stands in its queue.

    ahead: jobs that wait before it. held: VMs that other jobs hold or may take now. provisioning: the turns of those
    that have no chips yet.
    """

    claim: Claim
    ahead: int
    held: int
    provisioning: tuple[Turn, ...] = ()


@dataclass(frozen=True)
class CompetingJobs:
    """What other jobs mean to this one.

    standing: in the queue of its open attempt; None if it waits in none. nodes: VMs in complete slices of the job's
    shape among the existing nodes; None: not counted yet. priority: that of the job's PriorityClass.
    """

    standing: Standing | None = None
    nodes: int | None = None
    priority: int = 0


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

    @property
    def is_near(self) -> bool:
        """Return False for a job so far behind that only its rough position is told: all else changes all the time."""
        return self.ahead <= _EXACT


def queue_of(kind: str, reservation: str | None, zone: str, accelerator: Slice) -> str:
    """Return the queue for an entry of spec.capacity; empty if it has none."""
    if accelerator.is_cpu:
        return ""
    if kind == "existing":
        return f"existing {accelerator.generation} {accelerator.topology or accelerator.chips_per_vm}"
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
        hosts=job.hosts,
        priority=attempt.priority,
        granted=attempt.granted or "",
        first=attempt.first or "",
        is_ready=attempt.ready is not None,
        is_scaling_up=attempt.scaling_up is not None,
    )


def queue_position(standing: Standing, total: int | None, now: datetime) -> QueuePosition:
    """Return the job's position, and whether its turn is now.

    total: VMs of the queue; None if unknown, or if the existing nodes are not counted yet: then the turn may come. With
    a total, turns are given while all claims fit. Without one, and for one job more than the existing nodes can take
    (an autoscaler may add more), a turn is given while no other job takes chips. A job that has long wanted more nodes
    than exist, without a word from an autoscaler, is passed: no node that it waits for could come to those behind it.
    """
    mine, ahead, held, provisioning = standing.claim, standing.ahead, standing.held, standing.provisioning
    is_existing = mine.queue.startswith("existing ")
    if is_existing:
        hopeless = [each for each in provisioning if each.is_hopeless(total, now)]
        held -= sum(each.hosts for each in hopeless)
        provisioning = tuple(each for each in provisioning if each not in hopeless)
    fits = is_existing if total is None else held + mine.hosts <= total
    if is_existing:
        waits_s = (timestamps.seconds_since(each.granted, now) or 0.0 for each in provisioning)
        fits = fits and not any(each > STUCK_S for each in waits_s)
    may_try = (is_existing or total is None) and not provisioning
    return QueuePosition(ahead == 0 and (fits or may_try), ahead, held, bool(provisioning))


def ahead_message(ahead: int) -> str:
    """Return `3 ahead` or `40+ ahead`: a far position is rounded, so that it does not change status each time."""
    if ahead <= _EXACT:
        return f"{ahead} ahead"
    digit = 10 ** (len(str(ahead)) - 1)
    return f"{ahead // digit * digit}+ ahead"
