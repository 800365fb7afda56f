"""The sessions with one MCP server, of which there may be replicas: an episode stays with that of its first call.

A new episode goes to the replica with the fewest of them, of those that answer. The episode of one that is gone is
lost, as with a server of one replica; later episodes go elsewhere until it answers again.
"""

import threading
import urllib.error
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pttrainer.environments.tools.mcp_client import ServerLost, Session
from pttrainer.runtime import http_client
from pttrainer.runtime.services.replicas import Replicas


class McpReplicas:
    """Speaks to all replicas, from any number of threads. make: makes the session with the server at a URL."""

    def __init__(self, urls: Sequence[str], make: Callable[[str], Session]) -> None:
        self._replicas = Replicas(urls)
        self._sessions = [make(url) for url in urls]
        self._homes: dict[int, int] = {}
        self._lock = threading.Lock()

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools of the first replica that answers, as it describes them. Raises ServerLost."""
        for session in self._sessions[:-1]:
            try:
                session.open()
                return session.tools()
            except ServerLost:
                continue
        self._sessions[-1].open()
        return self._sessions[-1].tools()

    def call(self, tool: str, arguments: Mapping[str, Any], limit_s: float, episode: int) -> tuple[str, bool]:
        """Return a result's text, and whether the tool calls it an error. Raises ServerLost or WrongCall."""
        replica = self._home(episode)
        session = self._sessions[replica]
        try:
            if not session.is_open:
                session.open()
            result = session.call(tool, arguments, limit_s)
        except ServerLost as lost:
            self._forget(episode)
            if _is_gone(lost):
                self._replicas.lost(replica)
            raise
        self._replicas.answered(replica)
        return result

    def begin(self) -> None:
        """Begin new episodes; all earlier ones are over."""
        for episode in list(self._homes):
            self._forget(episode)

    def close(self) -> None:
        """End the sessions."""
        for session in self._sessions:
            session.close()

    def _home(self, episode: int) -> int:
        with self._lock:
            if episode not in self._homes:
                self._homes[episode] = self._replicas.take()
            return self._homes[episode]

    def _forget(self, episode: int) -> None:
        with self._lock:
            replica = self._homes.pop(episode, None)
        if replica is not None:
            self._replicas.release(replica)


def _is_gone(lost: ServerLost) -> bool:
    """Return True if nothing answers there; a slow tool, a long answer or an error of the server's own is no reason."""
    cause = lost.__cause__
    is_late = isinstance(cause, TimeoutError) and cause.errno is None  # of a limit here, not the kernel's ETIMEDOUT
    if is_late or isinstance(cause, urllib.error.HTTPError):
        return False
    return isinstance(cause, OSError | http_client.HttpError)
