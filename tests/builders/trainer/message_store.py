"""The store by which processes joined (`leader_messages.Store`), between threads in place of processes."""

import threading


class MessageStore:
    """A store for `members` threads, which waits `limit_s` at most."""

    def __init__(self, members: int = 2, limit_s: float = 30.0) -> None:
        self.values: dict[str, bytes] = {}
        self._members, self._limit_s = members, limit_s
        self._arrived: dict[str, int] = {}
        self._changed = threading.Condition()

    def key_value_set_bytes(self, key: str, value: bytes) -> None:
        """Set a key; it must be new, as in JAX's store."""
        with self._changed:
            assert key not in self.values
            self.values[key] = value
            self._changed.notify_all()

    def blocking_key_value_get_bytes(self, key: str, timeout_in_ms: int) -> bytes:
        """Wait for a key."""
        assert timeout_in_ms > 0
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.values, self._limit_s), key
            return self.values[key]

    def key_value_delete(self, key: str) -> None:
        """Remove a key and all below it."""
        with self._changed:
            self.values = {each: value for each, value in self.values.items() if not each.startswith(f"{key}/")}

    def wait_at_barrier(self, barrier_id: str, timeout_in_ms: int) -> None:
        """Wait for all."""
        assert timeout_in_ms > 0
        with self._changed:
            self._arrived[barrier_id] = self._arrived.get(barrier_id, 0) + 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._arrived[barrier_id] == self._members, self._limit_s)
