"""The process of a sampler that speaks to the trainer, as the others see it.

Every request that changes what a sampler holds, or samples, goes to the others before it takes effect here, in one
order (`order`), by JAX's coordination service (`leader_messages`). What is long, which weights are, they fetch from
this process's HTTP server: the service compresses all that it carries, and keeps it in pieces of 1 MiB.

Each of the others also holds a connection open as long as it lives (`watch`). When one breaks, the sampler cannot go
on: this process ends, and with it the others, and Kubernetes makes them anew.
"""

import select
import socket
import threading
from collections.abc import Callable

import numpy as np

from pttrainer.runtime.distributed.leader_messages import LeaderMessages

BEGIN, TENSORS, FINISH, GENERATE, GO_ON, FORGET, END = b"b", b"t", b"f", b"g", b"o", b"k", b"e"
INLINE, FETCHED = b"i", b"f"
INLINE_BYTES = 1 << 16
"""Longest request that goes by the messages."""
LOOK_S = 1.0


class SamplerGroup:
    """The other processes; none, with messages None. lost: called, on some thread, when one of them is gone."""

    def __init__(self, messages: LeaderMessages | None = None, members: int = 0) -> None:
        self._messages, self._members = messages, members
        self.order = threading.RLock()
        self._fetched = b""
        self._connections: set[socket.socket] = set()
        self._came = 0
        self._changed = threading.Condition()
        self._lost: Callable[[], None] = lambda: None
        self._is_lost = False

    @property
    def is_whole(self) -> bool:
        """Return True if all of them have come, and none has gone."""
        with self._changed:
            return self._came == self._members and not self._is_lost

    def greet(self, port: int) -> None:
        """Let the others know the port of this process's server; wait until they do."""
        if self._messages is not None:
            self._messages.send([str(port).encode()])

    def tell(self, kind: bytes, body: bytes = b"") -> None:
        """Have the others do the same. Only while `order` is held."""
        if self._messages is None:
            return
        if len(body) <= INLINE_BYTES:
            self._messages.send([kind, INLINE, body])
            return
        self._fetched = body
        self._messages.send([kind, FETCHED])
        self._messages.answers()
        self._fetched = b""

    def fetched(self) -> bytes:
        """Return the body that the others fetch."""
        return self._fetched

    def total(self, here: np.ndarray) -> np.ndarray:
        """Return the sum over all processes, to each of them. Only while `order` is held."""
        if self._messages is None:
            return here
        others = [np.frombuffer(body, here.dtype) for body in self._messages.answers()]
        whole: np.ndarray = np.sum([here, *others], axis=0, dtype=here.dtype)
        self._messages.send([whole.tobytes()])
        return whole

    def when_lost(self, action: Callable[[], None]) -> None:
        """Set what happens once when one of the others is gone."""
        self._lost = action

    def watch(self, connection: socket.socket) -> None:
        """Hold the connection of one of the others, until it breaks."""
        with self._changed:
            self._connections.add(connection)
            self._came += 1
        while not select.select([connection], [], [], LOOK_S)[0]:
            pass
        with self._changed:
            self._connections.discard(connection)
            is_first, self._is_lost = not self._is_lost, True
            self._changed.notify_all()
        if is_first:
            self._lost()

    def is_lost_within(self, limit_s: float) -> bool:
        """Return True if one of the others is gone, or goes within so many seconds."""
        with self._changed:
            return self._members > 0 and self._changed.wait_for(lambda: self._is_lost, limit_s)

    def end(self, limit_s: float) -> None:
        """Have the others end well, and wait for them for so many seconds."""
        self.when_lost(lambda: None)
        with self.order:
            self.tell(END)
        self._wait_for_none(limit_s)

    def break_up(self, limit_s: float) -> None:
        """Have the others end, too, before this process does: else JAX would abort them, which counts as a failure."""
        self.when_lost(lambda: None)
        with self._changed:
            connections = list(self._connections)
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # gone by itself
        self._wait_for_none(limit_s)

    def _wait_for_none(self, limit_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._connections, limit_s)
