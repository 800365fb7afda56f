"""Handlers of a child process: a table from a source's kind to the function that answers its requests.

A source is a JSON object with `kind` and that kind's arguments. A handler takes one request and returns one value, or
raises RewardCodeError; any other exception is reported with its line in the user's file. `takes` says how requests
look: "one" sample, "many" samples scored in one call, or "async", which run concurrently and are answered one by one.
Tools and environments have requests of their own.
"""

import asyncio
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pttrainer.sandbox import user_code

LONGEST_ERROR = 500
AT_ONCE = 64
"""Maximum concurrent calls of an async reward in one child."""

Source = Mapping[str, Any]


class Handler(NamedTuple):
    """takes: one, many or async. details: what else the parent should know of it."""

    handle: Callable[[Any], Any]
    takes: str = "one"
    details: Mapping[str, Any] = {}


def load(source: Source) -> Handler:
    """Return the handler that a source names; raise RewardCodeError if the user's code cannot be loaded.

    A source's `packages` is a directory that is searched after all others.
    """
    if source.get("packages"):
        sys.path.append(source["packages"])
    module, _, function = LOADERS[source["kind"]].partition(":")
    handler: Handler = getattr(importlib.import_module(module), function)(source)
    return handler


def answer(handle: Callable[[Any], Any], request: Any) -> dict[str, Any]:
    """Return the answer to a request, whatever the user's code does short of ending the process."""
    try:
        return {"value": handle(request)}
    except user_code.ServerGone as error:
        return {"error": error_message(error), "lost": True}
    except BaseException as error:  # SystemExit, too: no signal raises one here
        return {"error": error_message(error)}


def error_message(error: BaseException) -> str:
    """Return the error's message on one line."""
    is_own = isinstance(error, user_code.RewardCodeError)
    return " ".join((str(error) if is_own else f"raised {user_code.describe(error)}")[:LONGEST_ERROR].split())


def function_handler(source: Source) -> Handler:
    """Return the handler of a user's reward function."""
    function = user_code.load(
        source["path"], source["function"], user_code.MANY if source["batched"] else user_code.ONE
    )
    if source["batched"]:
        return Handler(lambda samples: _score_batch(function, samples), "many")
    if user_code.is_async(function):
        return Handler(lambda samples: asyncio.run(_score_concurrently(function, samples, source["timeout"])), "async")
    return Handler(lambda sample: user_code.number(function(*sample)))


def _score_batch(function: Callable[..., Any], samples: Sequence[Any]) -> list[dict[str, Any]]:
    """Score all samples in one call. A wrong number of rewards invalidates all of them."""
    prompts, completions, rows = ([sample[part] for sample in samples] for part in range(3))
    values = function(prompts, completions, rows)
    if user_code.is_async(function):
        values = asyncio.run(values)
    return [answer(user_code.number, value) for value in user_code.list_of(values, len(samples))]


async def _score_concurrently(
    function: Callable[..., Any], samples: Sequence[Any], timeout_s: float
) -> list[dict[str, Any]]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def score(sample: Any) -> dict[str, Any]:
        async with gate:
            try:
                return {"value": user_code.number(await asyncio.wait_for(function(*sample), timeout_s))}
            except TimeoutError:
                return {"error": f"no answer within {timeout_s:g} s", "stopped": True}
            except BaseException as error:
                return {"error": error_message(error)}

    return await asyncio.gather(*(score(sample) for sample in samples))


def builtin_handler(source: Source) -> Handler:
    """Return the handler of a builtin reward that may hang, and therefore runs in a child."""
    reward = importlib.import_module(source["module"]).reward
    return Handler(lambda sample: user_code.number(reward(*sample)))


LOADERS: dict[str, str] = {
    "function": "pttrainer.sandbox.handlers:function_handler",
    "builtin": "pttrainer.sandbox.handlers:builtin_handler",
    "pattern": "pttrainer.rewards.builtin.format:handler",
    "code": "pttrainer.rewards.builtin.code:handler",
    "tool": "pttrainer.environments.python_tool:handler",
    "mcp": "pttrainer.environments.tools.mcp_stdio:handler",
    "environment": "pttrainer.environments.episodes.python_episodes:handler",
    "openenv": "pttrainer.environments.episodes.openenv_episodes:handler",
    "verifiers": "pttrainer.environments.episodes.verifiers_episodes:handler",
    "gymnasium": "pttrainer.environments.episodes.gymnasium_episodes:handler",
}
"""`module:function` by a source's `kind`. Named by string, because rewards and environments are layers above this
one."""
