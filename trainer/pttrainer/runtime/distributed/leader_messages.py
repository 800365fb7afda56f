"""Bytes from the leader to all processes of a run, from any thread: by the store through which they joined.

A collective on the devices would do, too, but only on the thread that trains: processes must start their programs in
one order, and batches that are sampled ahead come on another thread. The messages of a run have an order, which is the
same on every process, whatever thread sends or waits.

    <message>/<beat>       `beat`: the leader still waits for what it will send, or the number of parts
    <message>/part-<i>     a piece of the message, of at most `PART_BYTES`

The others wait as long as the leader beats and stay alive with it. A message is removed when all have read it, and may
be answered (`answer`, `answers`). A process that dies ends the run by JAX's own heartbeats, as in a collective.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from pttrainer.runtime.distributed import processes
from pttrainer.runtime.distributed.processes import DAY_MS

PART_BYTES = 1 << 20
PULSE_S = 5.0
_BEAT = b"beat"
_HOME = "posttrain/leader-messages"


class Store(Protocol):
    """The store of JAX's coordination service, which every process reaches."""

    def key_value_set_bytes(self, key: str, value: bytes) -> None:
        """Set a key."""
        ...

    def blocking_key_value_get_bytes(self, key: str, timeout_in_ms: int) -> bytes:
        """Wait for a key, and return its value."""
        ...

    def key_value_delete(self, key: str) -> None:
        """Remove a key and all below it."""
        ...

    def wait_at_barrier(self, barrier_id: str, timeout_in_ms: int) -> None:
        """Wait for all processes."""
        ...


class LeaderMessages:
    """The messages of a run. Every process calls `send` or `receive` for each message, in the same order.

    rank, count: of this process, and of all; the leader's is 0.
    """

    def __init__(self, store: Store, part_bytes: int = PART_BYTES, rank: int = 0, count: int = 2) -> None:
        self._store, self._part_bytes, self._rank, self._count = store, part_bytes, rank, count
        self._number = self._beats = self._answered = 0
        self._last_sent = time.monotonic()

    def beat(self) -> None:
        """Tell the others now and then that the leader still waits. On the leader only."""
        if time.monotonic() - self._last_sent >= PULSE_S:
            self._write_head(_BEAT)

    def beating(self, alive: Callable[[], None]) -> Callable[[], None]:
        """Return `alive`, called while the leader waits, so that it lets the others know, too. On the leader only."""

        def both() -> None:
            alive()
            self.beat()

        return both

    def send(self, body: Sequence[bytes | memoryview]) -> None:
        """Send the next message, and wait until all have read it. On the leader only."""
        whole = b"".join(body)
        parts = [whole[at : at + self._part_bytes] for at in range(0, len(whole), self._part_bytes)]
        for i, part in enumerate(parts):
            self._store.key_value_set_bytes(f"{self._home}/part-{i}", part)
        self._write_head(str(len(parts)).encode())
        home = self._home
        self._end()
        self._store.key_value_delete(home)

    def receive(self, alive: Callable[[], None]) -> bytes:
        """Return the next message. alive: called while the leader still waits. On all but the leader."""
        while True:
            head = self._store.blocking_key_value_get_bytes(f"{self._home}/{self._beats}", DAY_MS)
            self._beats += 1
            alive()
            if head != _BEAT:
                break
        parts = [self._store.blocking_key_value_get_bytes(f"{self._home}/part-{i}", DAY_MS) for i in range(int(head))]
        self._end()
        return b"".join(parts)

    def answer(self, body: bytes) -> None:
        """Answer a message, for which the leader waits. On all but the leader."""
        self._store.key_value_set_bytes(f"{self._answers}/{self._rank}", body)
        self._answered += 1

    def answers(self) -> list[bytes]:
        """Return what the others answer, by rank. On the leader only."""
        ranks = range(1, self._count)
        bodies = [self._store.blocking_key_value_get_bytes(f"{self._answers}/{rank}", DAY_MS) for rank in ranks]
        self._store.key_value_delete(self._answers)
        self._answered += 1
        return bodies

    @property
    def _answers(self) -> str:
        return f"{_HOME}-answers/{self._answered}"

    @property
    def _home(self) -> str:
        return f"{_HOME}/{self._number}"

    def _write_head(self, head: bytes) -> None:
        self._store.key_value_set_bytes(f"{self._home}/{self._beats}", head)
        self._beats += 1
        self._last_sent = time.monotonic()

    def _end(self) -> None:
        """Wait until all have read the message, and turn to the next."""
        self._store.wait_at_barrier(f"{self._home}/read", DAY_MS)
        self._number, self._beats = self._number + 1, 0


def of_run() -> LeaderMessages | None:
    """Return the messages of this run; None if it has one process."""
    import jax

    if jax.process_count() == 1:
        return None
    return LeaderMessages(processes.store(), rank=jax.process_index(), count=jax.process_count())
