"""Episodes of a `verifiers` package, in the child process that holds them: one environment, a rollout for each episode.

    ["reset", episode, {row, messages}]    → the conversation that the model continues; [] if it is the row's
    ["step", episode, text]                → [messages, done, calls, failed]
    ["score", 0, [[episode, cut], …]]      → {reward} or {error} for each: the samples of one prompt, by its rubric

Rewards are the rubric's: weighted sums of functions, awaited side by side, group functions with all samples of the
prompt. `verifiers` gives 0 for a function that raises; here its episode has no reward, or all of its group where a
group function is among them.

Left out: rubrics that ask a judge model, completions without chat, and releases after 0.3, whose environments are
programs that run elsewhere.
"""

import asyncio
import functools
import importlib
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from typing import Any

from pttrainer.environments.episodes.verifiers_rollout import Message, Policy, Rollout, text_of
from pttrainer.sandbox import handlers, user_code
from pttrainer.sandbox.handlers import Handler, Source
from pttrainer.sandbox.user_code import RewardCodeError, describe

ACCEPTED = "verifiers from 0.1.8 to 0.3"
_BASE = ".envs.environment"
_Raised = list[BaseException]
_raised: ContextVar[_Raised] = ContextVar("raised")
"""What the reward functions of the task at hand have raised."""


class Rollouts:
    """Answers requests about the episodes of one environment. form: of tool calls."""

    def __init__(self, environment: Any, form: str, loop: asyncio.Runner) -> None:
        self._environment, self._form, self._loop = environment, form, loop
        self._client = client_maker(environment)
        self._tools = [schema["function"]["name"] for schema in schemas_of(environment)]
        self._rubrics = list(leaves(environment.rubric))
        self._rollouts: dict[int, Rollout] = {}
        if getattr(environment, "timeout_seconds", None) is not None:
            environment.timeout_seconds = None  # it counts the time of the model, too; the job has a limit of its own
        for rubric in self._rubrics:
            rubric.funcs = [_watched(function) for function in rubric.funcs]

    def answer(self, request: list[Any]) -> Any:
        """Return the answer to one of the requests above."""
        verb, episode, value = request
        if verb == "forget":
            self._loop.run(self._forget())
            return True
        if verb == "score":
            return self._loop.run(self._score(value))
        if verb == "reset":
            return self._loop.run(self._reset(episode, value["row"], value["messages"]))
        if episode not in self._rollouts:
            raise RewardCodeError("another episode ended the process that both shared")
        rollout = self._rollouts[episode]
        messages = self._loop.run(rollout.step(value))
        return [messages or [], messages is None, *rollout.counts()]

    async def _reset(self, episode: int, row: Mapping[str, Any], messages: list[Message]) -> list[Message]:
        given = input_of(self._environment, row, messages)

        def run(policy: Policy) -> Any:
            return self._environment.rollout(given, self._client(policy), "policy", {})

        rollout = self._rollouts[episode] = Rollout(run, self._form, self._tools)
        first = await rollout.begin()
        is_of_row = [(m["role"], m["content"]) for m in first] == [(m["role"], m["content"]) for m in messages]
        return [] if is_of_row else first

    async def _forget(self) -> None:
        rollouts, self._rollouts = self._rollouts, {}
        for rollout in rollouts.values():
            await rollout.close()

    async def _score(self, ended: Sequence[tuple[int, str | None]]) -> list[dict[str, Any]]:
        answers = await asyncio.gather(*(self._ended(episode, cut) for episode, cut in ended))
        states = [answer["state"] for answer in answers if "state" in answer]
        if states and any(rubric._get_group_reward_funcs() for rubric in self._rubrics):
            scored = await self._scored("score_group", states, len(states))
        else:
            alone = await asyncio.gather(*(self._scored("score_rollout", state, 1) for state in states))
            scored = [one for (one,) in alone]
        rest = iter(scored)
        return [next(rest) if "state" in answer else answer for answer in answers]

    async def _ended(self, episode: int, cut: str | None) -> dict[str, Any]:
        try:
            if episode not in self._rollouts:
                raise RewardCodeError("another episode ended the process that both shared")
            return {"state": await self._rollouts[episode].end(cut)}
        except user_code.ServerGone as gone:
            return {"error": handlers.error_message(gone), "lost": True}
        except Exception as error:  # of anybody's code
            return {"error": handlers.error_message(error)}

    async def _scored(self, method: str, states: Any, count: int) -> list[dict[str, Any]]:
        """Return the reward of each state; the same error for all of them if a function raised."""
        raised: _Raised = []
        _raised.set(raised)
        score = getattr(self._environment.rubric, method)
        # Until 0.1.9 a semaphore limits the functions that run at once.
        limit = {"score_sem": nullcontext()} if "score_sem" in inspect.signature(score).parameters else {}
        listed = states if method == "score_group" else [states]
        try:
            await score(states, **limit)
            for state in listed:
                if hasattr(self._environment.rubric, "cleanup"):
                    await self._environment.rubric.cleanup(state)
            if raised:
                raise RewardCodeError(f"a reward function raised {describe(raised[0])}")
            return [{"reward": user_code.number(float(state["reward"]))} for state in listed]
        except Exception as error:  # of anybody's code
            return [{"error": handlers.error_message(error)}] * count


def handler(source: Source) -> Handler:
    """Return the sandbox's handler. Raises RewardCodeError if the environment cannot be loaded or played."""
    environment = loaded(source["id"], source["arguments"])
    refused = why_refused(environment)
    if refused:
        raise RewardCodeError(f"{source['id']}: {refused}")
    rollouts = Rollouts(environment, source["form"], asyncio.Runner())
    return Handler(rollouts.answer, details={"schemas": schemas_of(environment)})


def loaded(name: str, arguments: Mapping[str, Any]) -> Any:
    """Return what `load_environment` of a package makes. Raises RewardCodeError."""
    os.environ.setdefault("VF_LOG_LEVEL", "ERROR")  # read once, when it is imported
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    module = name.rpartition("/")[2].replace("-", "_")
    try:
        load = getattr(importlib.import_module(module), "load_environment", None)
    except Exception as error:  # of anybody's code
        hint = "; hint: name the package, and verifiers, in spec.environment.packages"
        raise RewardCodeError(f"{name}: cannot be imported: {describe(error)}{hint}") from error
    if not callable(load):
        raise RewardCodeError(f"{name}: module {module} has no function load_environment")
    try:
        return load(**arguments)
    except Exception as error:  # of anybody's code
        hint = "; hint: a judge that needs a key is not supported" if type(error).__name__ == "OpenAIError" else ""
        raise RewardCodeError(f"{name}: load_environment raised {describe(error)}{hint}") from error


def why_refused(environment: Any) -> str:
    """Return why an environment cannot be played, or an empty string."""
    kind = type(environment).__name__
    if _package(environment) is None or "input" not in inspect.signature(environment.rollout).parameters:
        return f"load_environment made a {kind}, which cannot be played; accepted: an Environment of {ACCEPTED}"
    if getattr(environment, "message_type", "chat") != "chat":
        return f"{kind} completes texts; accepted: environments with chat messages"
    for rubric in leaves(environment.rubric):
        if hasattr(rubric, "judge_client"):
            return (
                f"its {type(rubric).__name__} asks a judge model that the job does not have; accepted: rubrics of "
                "functions; hint: judge with spec.rewards[].judge"
            )
    return ""


def client_maker(environment: Any) -> Callable[[Policy], Any]:
    """Return what makes of a policy the client that this release's rollouts take: from 0.1.11 on, it is wrapped."""
    try:
        wrapped: Callable[[Policy], Any] = importlib.import_module(
            f"{_package(environment)}.clients"
        ).OpenAIChatCompletionsClient
    except ModuleNotFoundError:
        return lambda policy: policy
    return wrapped


def schemas_of(environment: Any) -> list[dict[str, Any]]:
    """Return the tools of an environment in the form of chat templates."""
    tools = getattr(environment, "tool_defs", None) or getattr(environment, "oai_tools", None) or []
    plain = [tool if isinstance(tool, Mapping) else tool.model_dump() for tool in tools]
    parts = ("name", "description", "parameters")
    return [
        dict(tool) if "function" in tool else {"type": "function", "function": {part: tool[part] for part in parts}}
        for tool in plain
    ]


def input_of(environment: Any, row: Mapping[str, Any], messages: list[Message]) -> dict[str, Any]:
    """Return a row as a rollout's input, with the environment's system prompt where the row has none."""
    system = getattr(environment, "system_prompt", None)
    if system and (not messages or messages[0]["role"] != "system"):
        messages = [{"role": "system", "content": text_of(system)}, *messages]
    info = row.get("info")
    usual = {
        "answer": row.get("answer") or "",
        "example_id": row.get("example_id", 0),
        "info": (json.loads(info) if isinstance(info, str) and info else info) or {},
    }
    if hasattr(environment, "_ensure_task"):  # until 0.1.12 the name of an environment, and required; later no text
        usual["task"] = row.get("task") or getattr(environment, "env_id", "") or "default"
        return {**row, **usual, "prompt": messages}
    return {name: value for name, value in row.items() if name != "task"} | usual | {"prompt": messages}


def leaves(rubric: Any) -> Iterator[Any]:
    """Yield a rubric, those of its group, and those of a group of environments."""
    yield rubric
    members = [*getattr(rubric, "rubrics", ()), *(one.rubric for one in getattr(rubric, "env_map", {}).values())]
    for member in members:
        yield from leaves(member)


def _package(environment: Any) -> str | None:
    """Return the package that an environment's base class comes from."""
    modules = [kind.__module__ for kind in type(environment).__mro__ if kind.__name__ == "Environment"]
    return next((module.removesuffix(_BASE) for module in modules if module.endswith(_BASE)), None)


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reward function whose exceptions are remembered: a rubric makes a reward of 0 of them."""

    @functools.wraps(function)
    async def watched(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result
        except Exception as error:
            _raised.get([]).append(error)
            raise

    return watched
