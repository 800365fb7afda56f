"""The environment of `spec.environment.python`, `gymnasium` or `openenv`: episodes live in child processes.

These can be killed. Each holds its share of the episodes. If one hangs in `reset` or `step`, or its process dies, all
episodes of that child end without a reward, and the rest of the step continues.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ptapi.spec import Environment as EnvironmentSpec
from pttrainer.environments import tool_call_parsing
from pttrainer.environments.environment import NO_PROMPTS, AssistantTurn, ResetResult, Row, RowPrompt, StepResult
from pttrainer.runtime.io.local_copy import local_copy
from pttrainer.runtime.services.addresses import addresses
from pttrainer.sandbox.pool import Alive, Pool, Request

FIELD = "spec.environment"
SHARE_OF_LIMIT = 0.9


def source_of(spec: EnvironmentSpec, packages: str | None, template: str | None = None) -> dict[str, Any]:
    """Return what the child processes load. packages: the directory of the job's own; template: of the model's chat."""
    own: dict[str, Any]
    if spec.verifiers is not None:
        form = tool_call_parsing.chosen_format(spec, template)
        name, arguments = spec.verifiers.id, spec.verifiers.arguments or {}
        own = {"kind": "verifiers", "id": name, "arguments": arguments, "form": form}
    elif spec.gymnasium is not None:
        world = spec.gymnasium
        own = {"kind": "gymnasium", "id": world.id, "arguments": world.arguments or {}, "actions": world.actions}
    elif spec.openenv is not None:
        # Shorter than the pool's limit, which ends the child and with it the other episodes there.
        fields = {"action_field": spec.openenv.action_field, "observation_field": spec.openenv.observation_field}
        timeout_s = SHARE_OF_LIMIT * spec.timeout_seconds
        own = {"kind": "openenv", "timeout_s": timeout_s, "urls": _urls(spec), **fields}
    else:
        assert spec.python is not None
        path = local_copy(f"{FIELD}.python", spec.python)
        own = {"kind": "environment", "path": path, "function": spec.python.class_name}
    return {**own, "packages": packages}


def _urls(spec: EnvironmentSpec) -> list[str]:
    """Return where the OpenEnv server listens, or its replicas do. Raises ConfigError."""
    assert spec.openenv is not None
    if spec.openenv.service is not None:
        return addresses(spec.openenv.service, f"{FIELD}.openenv.service")
    assert spec.openenv.url is not None  # one of the two is given
    return [spec.openenv.url.rstrip("/")]


class UserEnvironment:
    """Worlds that child processes hold. Raises UserCodeError if they cannot be made.

    source: what the children load; timeout_s: what an episode may spend here; alive: called while waiting.
    """

    is_rewarding = True

    def __init__(self, source: Mapping[str, Any], timeout_s: float, alive: Alive) -> None:
        self._pool = Pool(f"{FIELD}.{'python' if source['kind'] == 'environment' else source['kind']}", source)
        self._timeout_s, self._alive = timeout_s, alive
        self._role: str = self._pool.loaded["role"]
        self.schemas: Sequence[Mapping[str, Any]] = self._pool.loaded["schemas"]

    def reset(self, rows: Mapping[int, Row], prompts: Mapping[int, RowPrompt] = NO_PROMPTS) -> dict[int, ResetResult]:
        """Begin episodes in the child processes; earlier ones are over."""
        children = len(self._pool)
        forget = [Request(["forget", 0, None], self._timeout_s, child) for child in range(children)]
        self._pool.call(forget, self._alive)
        requests = [Request(["reset", n, dict(row)], self._timeout_s, n % children) for n, row in rows.items()]
        replies = zip(rows, self._pool.call(requests, self._alive), strict=True)
        return {
            n: ResetResult(reply.value or "", "" if reply.value is not None else reply.error, is_lost=reply.is_lost)
            for n, reply in replies
        }

    def step(self, turns: Mapping[int, AssistantTurn]) -> dict[int, StepResult]:
        """Return an answer for each of these episodes."""
        children = len(self._pool)
        requests = [Request(["step", n, turn.text], turn.left_s, n % children) for n, turn in turns.items()]
        results = {}
        for episode, reply in zip(turns, self._pool.call(requests, self._alive), strict=True):
            if reply.value is None:
                results[episode] = StepResult(
                    done=True, error=reply.error, seconds=reply.seconds, is_lost=reply.is_lost
                )
                continue
            observation, reward, done = reply.value
            messages = () if done else ({"role": self._role, "content": observation},)
            results[episode] = StepResult(messages, reward, done, seconds=reply.seconds)
        return results

    def finish(self, last_turns: Mapping[int, str | None]) -> dict[int, StepResult]:
        """Return nothing: the rewards of the turns are all."""
        return {}

    def close(self) -> None:
        """End the child processes."""
        self._pool.close()
