"""The environment of `spec.environment.verifiers`: child processes hold its rollouts, and score them at the end.

The samples of one prompt live in one child, where the rubric can compare them. A child that hangs or dies ends them all
without a reward, and the rest of the step continues.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pttrainer.environments.environment import AssistantTurn, ResetResult, Row, RowPrompt, StepResult
from pttrainer.sandbox.pool import Alive, Pool, Request

FIELD = "spec.environment.verifiers"
LOAD_S = 900.0
"""An environment may fetch its data when it is loaded."""


class VerifiersEnvironment:
    """Rollouts that child processes hold. Raises UserCodeError if the environment cannot be loaded or played.

    source: what the children load; timeout_s: what an episode may spend here; alive: called while waiting.
    """

    is_rewarding = True

    def __init__(self, source: Mapping[str, Any], timeout_s: float, alive: Alive) -> None:
        self._pool = Pool(FIELD, source, load_s=LOAD_S)
        self._timeout_s, self._alive = timeout_s, alive
        self._groups: dict[int, int] = {}
        self.schemas: Sequence[Mapping[str, Any]] = self._pool.loaded["schemas"]

    def reset(self, rows: Mapping[int, Row], prompts: Mapping[int, RowPrompt]) -> dict[int, ResetResult]:
        """Begin episodes in the child processes; earlier ones are over."""
        forget = [Request(["forget", 0, None], self._timeout_s, child) for child in range(len(self._pool))]
        self._pool.call(forget, self._alive)
        self._groups = {n: prompts[n].group for n in rows}
        requests = [
            self._request(n, ["reset", n, {"row": dict(row), "messages": list(prompts[n].messages)}], self._timeout_s)
            for n, row in rows.items()
        ]
        replies = zip(rows, self._pool.call(requests, self._alive), strict=True)
        return {
            n: ResetResult(error=reply.error, is_lost=reply.is_lost)
            if reply.value is None
            else ResetResult(messages=reply.value)
            for n, reply in replies
        }

    def step(self, turns: Mapping[int, AssistantTurn]) -> dict[int, StepResult]:
        """Return an answer for each of these episodes; rewards come at the end."""
        requests = [self._request(n, ["step", n, turn.text], turn.left_s) for n, turn in turns.items()]
        results = {}
        for episode, reply in zip(turns, self._pool.call(requests, self._alive), strict=True):
            if reply.value is None:
                results[episode] = StepResult(
                    done=True, error=reply.error, seconds=reply.seconds, is_lost=reply.is_lost
                )
                continue
            messages, done, calls, failed = reply.value
            results[episode] = StepResult(messages, done=done, seconds=reply.seconds, calls=calls, failed=failed)
        return results

    def finish(self, last_turns: Mapping[int, str | None]) -> dict[int, StepResult]:
        """Return the rubric's reward of each of these episodes."""
        members: dict[int, list[int]] = {}
        for episode in last_turns:
            members.setdefault(self._groups[episode], []).append(episode)
        requests = [
            self._request(group[0], ["score", 0, [[n, last_turns[n]] for n in group]], self._timeout_s)
            for group in members.values()
        ]
        results = {}
        for group, reply in zip(members.values(), self._pool.call(requests, self._alive), strict=True):
            failed = {"error": reply.error, "lost": reply.is_lost}
            for episode, scored in zip(group, reply.value or [failed] * len(group), strict=True):
                results[episode] = StepResult(
                    reward=scored.get("reward", 0.0),
                    done=True,
                    error=scored.get("error", ""),
                    is_lost=scored.get("lost", False),
                )
        return results

    def close(self) -> None:
        """End the child processes."""
        self._pool.close()

    def _request(self, episode: int, message: list[Any], limit_s: float) -> Request:
        return Request(message, limit_s, self._groups[episode] % len(self._pool))
