"""The environment of `spec.environment.python`: episodes live in child processes that can be killed.

Each child holds its share of the episodes. If one hangs in `reset` or `step`, or kills its process, all episodes of its
child end without a reward, and the rest of the step continues.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ptapi.spec import PythonEnvironment
from pttrainer.environments.environment import AssistantTurn, ResetResult, Row, StepResult
from pttrainer.runtime.io.local_copy import local_copy
from pttrainer.sandbox.pool import Alive, Pool, Request

FIELD = "spec.environment.python"


class UserEnvironment:
    """A user's environment class. timeout_s: what an episode may spend here; alive: called while waiting."""

    is_rewarding = True

    def __init__(self, spec: PythonEnvironment, timeout_s: float, alive: Alive) -> None:
        path = local_copy(FIELD, spec)
        self._pool = Pool(FIELD, {"kind": "environment", "path": path, "function": spec.class_name})
        self._timeout_s, self._alive = timeout_s, alive
        self._role: str = self._pool.loaded["role"]
        self.schemas: Sequence[Mapping[str, Any]] = self._pool.loaded["schemas"]

    def reset(self, rows: Mapping[int, Row]) -> dict[int, ResetResult]:
        """Begin episodes in the child processes; earlier ones are over."""
        children = len(self._pool)
        forget = [Request(["forget", 0, None], self._timeout_s, child) for child in range(children)]
        self._pool.call(forget, self._alive)
        requests = [Request(["reset", n, dict(row)], self._timeout_s, n % children) for n, row in rows.items()]
        replies = zip(rows, self._pool.call(requests, self._alive), strict=True)
        return {
            n: ResetResult(reply.value or "", "" if reply.value is not None else reply.error) for n, reply in replies
        }

    def step(self, turns: Mapping[int, AssistantTurn]) -> dict[int, StepResult]:
        """Return an answer for each of these episodes."""
        children = len(self._pool)
        requests = [Request(["step", n, turn.text], turn.left_s, n % children) for n, turn in turns.items()]
        results = {}
        for episode, reply in zip(turns, self._pool.call(requests, self._alive), strict=True):
            if reply.value is None:
                results[episode] = StepResult(done=True, error=reply.error, seconds=reply.seconds)
                continue
            observation, reward, done = reply.value
            messages = () if done else ({"role": self._role, "content": observation},)
            results[episode] = StepResult(messages, reward, done, seconds=reply.seconds)
        return results

    def close(self) -> None:
        """End the child processes."""
        self._pool.close()
