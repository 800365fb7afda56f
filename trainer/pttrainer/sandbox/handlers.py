"""What a child process can be asked to run: a table from a source's kind to the function that answers requests.

A source is a JSON object with `kind` and what that kind needs. A handler takes one request and returns one value,
or raises RewardCodeError, or anything else, which is then said with its line in the user's file. How requests
look (`takes`): "one" sample, "many" samples that the function judges in one call, or "async" ones, which run
at the same time and are answered one by one. Tools and environments have requests of their own.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pttrainer.sandbox import user_code

LONGEST_ERROR = 500
AT_ONCE = 64
"""Most calls of an async reward that one child has under way."""

Source = Mapping[str, Any]


class Handler(NamedTuple):
    """takes: one, many or async. told: what else the parent should know of it."""

    handle: Callable[[Any], Any]
    takes: str = "one"
    told: Mapping[str, Any] = {}


def load(source: Source) -> Handler:
    """Return the handler that a source names; raise RewardCodeError if the user's code cannot be loaded."""
    module, _, function = LOADERS[source["kind"]].partition(":")
    handler: Handler = getattr(importlib.import_module(module), function)(source)
    return handler


def answer(handle: Callable[[Any], Any], request: Any) -> dict[str, Any]:
    """What goes back for a request, whatever the user's code does short of ending the process."""
    try:
        return {"value": handle(request)}
    except BaseException as error:  # SystemExit, too: no signal raises one here
        return {"error": words(error)}


def words(error: BaseException) -> str:
    """What is wrong, on one line."""
    known = isinstance(error, user_code.RewardCodeError)
    return " ".join((str(error) if known else f"raised {user_code.describe(error)}")[:LONGEST_ERROR].split())


def function_handler(source: Source) -> Handler:
    """Return the handler of a user's reward function."""
    function = user_code.load(
        source["path"], source["function"], user_code.MANY if source["batched"] else user_code.ONE
    )
    if source["batched"]:
        return Handler(lambda samples: _judge_together(function, samples), "many")
    if user_code.is_async(function):
        return Handler(lambda samples: asyncio.run(_judge_at_once(function, samples, source["timeout"])), "async")
    return Handler(lambda sample: user_code.number(function(*sample)))


def _judge_together(function: Callable[..., Any], samples: Sequence[Any]) -> list[dict[str, Any]]:
    """One call for all. A wrong number of rewards says nothing about any of them."""
    prompts, completions, rows = ([sample[part] for sample in samples] for part in range(3))
    found = function(prompts, completions, rows)
    if user_code.is_async(function):
        found = asyncio.run(found)
    return [answer(user_code.number, value) for value in user_code.list_of(found, len(samples))]


async def _judge_at_once(
    function: Callable[..., Any], samples: Sequence[Any], timeout_s: float
) -> list[dict[str, Any]]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def judge(sample: Any) -> dict[str, Any]:
        async with gate:
            try:
                return {"value": user_code.number(await asyncio.wait_for(function(*sample), timeout_s))}
            except TimeoutError:
                return {"error": f"no answer within {timeout_s:g} s", "stopped": True}
            except BaseException as error:
                return {"error": words(error)}

    return await asyncio.gather(*(judge(sample) for sample in samples))


def builtin_handler(source: Source) -> Handler:
    """Return the handler of a builtin reward that may hang, and therefore runs in a child."""
    judge = importlib.import_module(source["module"]).reward
    return Handler(lambda sample: user_code.number(judge(*sample)))


LOADERS: dict[str, str] = {
    "function": "pttrainer.sandbox.handlers:function_handler",
    "builtin": "pttrainer.sandbox.handlers:builtin_handler",
    "pattern": "pttrainer.rewards.builtin.format:handler",
    "code": "pttrainer.rewards.builtin.code:handler",
    "tool": "pttrainer.environments.python_tool:handler",
    "environment": "pttrainer.environments.python_episodes:handler",
}
"""`module:function` by a source's `kind`. By name, because rewards and environments stand above the sandbox."""
