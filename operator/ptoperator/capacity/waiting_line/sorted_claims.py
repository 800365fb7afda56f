"""The claims of all jobs, each queue in the order of `fair_order`, kept current claim by claim.

Thousands of jobs wait, each asks for its position, and each changes its claim some times. So neither may cost a walk
through all claims. The one idea: the order between namespaces is a turn for one, then a turn for another, and depends
on what each has been given by then; but what a namespace has been given before a certain job is what it holds and what
waits before that job in its own row. So each waiting job has a key that depends on its own namespace alone, all keys
together are the order, and a position is a binary search in each namespace's row.

What is left of a walk: after a change in a row, where several namespaces wait, an addition for each job of that row.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from ptoperator.capacity.waiting_line.fair_order import Claim, Standing, Turn


class Claims:
    """The claims of all jobs, by queue. Not safe to share between threads."""

    def __init__(self, claims: Iterable[Claim] = ()) -> None:
        self._queues: dict[str, _Queue] = {}
        for each in claims:
            self.replace(None, each)

    def __len__(self) -> int:
        return sum(len(each.claims) for each in self._queues.values())

    def replace(self, old: Claim | None, new: Claim | None) -> None:
        """Put a job's new claim in the place of its old one; None stands for no claim."""
        if old is not None:
            self._queues[old.queue].remove(old)
            if not self._queues[old.queue].claims:
                del self._queues[old.queue]
        if new is not None:
            self._queues.setdefault(new.queue, _Queue()).add(new)

    def first(self, queue: str) -> str:
        """Return the uid of the job at the head of a queue; empty if none waits."""
        return self._queues[queue].first() if queue in self._queues else ""

    def standing(self, mine: Claim) -> Standing:
        """Return where a waiting claim stands, whether or not it is noted as it is now."""
        queue = self._queues.get(mine.queue)
        noted = queue.claims.get(mine.uid) if queue else None
        if noted == mine and queue is not None:
            return queue.standing(mine)
        self.replace(noted, mine)
        try:
            return self._queues[mine.queue].standing(mine)
        finally:
            self.replace(mine, noted)


@dataclass
class _Row:
    """The waiting claims of one namespace, in order."""

    claims: list[Claim] = field(default_factory=list)
    _starts: list[int] | None = None

    def add(self, claim: Claim) -> None:
        insort(self.claims, claim, key=_within)
        self._starts = None

    def remove(self, claim: Claim) -> None:
        del self.claims[self.index(claim)]
        self._starts = None

    def index(self, claim: Claim) -> int:
        return bisect_left(self.claims, _within(claim), key=_within)

    def key(self, index: int, held: int) -> tuple[Any, ...]:
        """Return the key of a claim among those of all namespaces. held: VMs that this namespace holds."""
        if self._starts is None:
            self._starts = list(accumulate((each.hosts for each in self.claims), initial=0))
        claim = self.claims[index]
        return (-claim.priority, claim.first or "~", held + self._starts[index], claim.created, claim.uid)

    def before(self, key: tuple[Any, ...], held: int) -> int:
        """Return how many claims have a lower key."""
        return bisect_left(range(len(self.claims)), key, key=lambda at: self.key(at, held))


@dataclass
class _Queue:
    claims: dict[str, Claim] = field(default_factory=dict)
    rows: dict[str, _Row] = field(default_factory=dict)
    held: Counter[str] = field(default_factory=Counter)
    total_held: int = 0
    provisioning: dict[str, Turn] = field(default_factory=dict)
    """The turns of jobs that have no chips yet, by uid."""

    def add(self, claim: Claim) -> None:
        self.claims[claim.uid] = claim
        if claim.is_waiting:
            self.rows.setdefault(claim.namespace, _Row()).add(claim)
            return
        self._hold(claim, claim.hosts)
        if claim.is_provisioning:
            self.provisioning[claim.uid] = Turn(claim.granted, claim.hosts)

    def remove(self, claim: Claim) -> None:
        del self.claims[claim.uid]
        if not claim.is_waiting:
            self._hold(claim, -claim.hosts)
            self.provisioning.pop(claim.uid, None)
            return
        row = self.rows[claim.namespace]
        row.remove(claim)
        if not row.claims:
            del self.rows[claim.namespace]

    def first(self) -> str:
        if not self.rows:
            return ""
        namespace = min(self.rows, key=lambda each: self.rows[each].key(0, self.held[each]))
        return self.rows[namespace].claims[0].uid

    def standing(self, mine: Claim) -> Standing:
        return Standing(mine, self._ahead(mine), self.total_held, tuple(self.provisioning.values()))

    def _ahead(self, mine: Claim) -> int:
        """Return how many wait before a claim of this queue."""
        own = self.rows[mine.namespace]
        ahead = own.index(mine)
        if len(self.rows) == 1:
            return ahead
        key = own.key(ahead, self.held[mine.namespace])
        for namespace, row in self.rows.items():
            if row is not own:
                ahead += row.before(key, self.held[namespace])
        return ahead

    def _hold(self, claim: Claim, hosts: int) -> None:
        self.total_held += hosts if claim.takes_chips else 0
        self.held[claim.namespace] += hosts
        if not self.held[claim.namespace]:
            del self.held[claim.namespace]


def _within(claim: Claim) -> tuple[Any, ...]:
    """Return the sort key within one namespace."""
    return (-claim.priority, claim.first or "~", claim.created, claim.uid)
