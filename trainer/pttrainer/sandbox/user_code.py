"""Load a user's Python file, which defines `reward(prompt, completion, row) -> float`, a tool or an environment.

Loaded once per child process, before the first sample. Each way in which the file can be wrong has its own message; a
wrong return value is quoted. Nothing is converted: True is not 1 and "1" is not 1, because the model learns from a
reward whatever it was meant to be.
"""

import importlib.util
import inspect
import math
import sys
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

MAX_REWARD = 1e9
"""Larger values overflow float32 once they are squared and summed."""


class RewardCodeError(Exception):
    """The user's code is missing or broken; the message says where and what is accepted."""


class ServerGone(RewardCodeError):
    """A server that the code needs does not answer as it should, and may come back."""


class Signature(NamedTuple):
    """How a function is called: argument names, example arguments, and the signature as a person writes it."""

    names: str
    examples: tuple[Any, ...]
    written: str


ONE = Signature("prompt, completion, row", ("", "", {}), "{name}(prompt: str, completion: str, row: dict) -> float")
MANY = Signature(
    "prompts, completions, rows",
    ([], [], []),
    "{name}(prompts: list[str], completions: list[str], rows: list[dict]) -> list[float]",
)


def load(path: str, function: str, signature: Signature | None = None, *, what: str = "function") -> Callable[..., Any]:
    """Return the object that the file calls `function`, described as `what` in messages.

    Raises RewardCodeError if it is missing or cannot be called with `signature`.
    """
    if not Path(path).is_file():
        raise RewardCodeError(f"{path}: no such file; hint: the path must exist where the trainer runs")
    function_ = getattr(_execute(path), function, None)
    accepted = f"; accepted: def {signature.written.format(name=function)}" if signature is not None else ""
    if function_ is None:
        raise RewardCodeError(f"{path}: no {what} {function!r}{accepted}")
    if not callable(function_):
        raise RewardCodeError(f"{path}: {function} is not a {what} but {_short(function_)}")
    if signature is not None:
        _check_signature(path, function, function_, signature)
    return function_  # type: ignore[no-any-return]


def is_async(function_or_value: Any) -> bool:
    """Return True for an `async def` function, or a result that must be awaited."""
    return inspect.iscoroutinefunction(function_or_value) or inspect.iscoroutine(function_or_value)


def list_of(value: Any, count: int) -> list[Any]:
    """Return a batched reward's result as a list; raise RewardCodeError unless it has one value per sample."""
    values = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(values, list | tuple):
        raise RewardCodeError(f"returned {_short(value)} ({type(value).__name__}); accepted: a list of {count} floats")
    if len(values) != count:
        raise RewardCodeError(f"returned {len(values)} rewards for {count} samples; accepted: one for each, in order")
    return list(values)


def number(value: Any) -> float:
    """Return a reward's result; raise RewardCodeError unless it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RewardCodeError(f"returned {_short(value)} ({type(value).__name__}); accepted: a float")
    if not math.isfinite(value):
        raise RewardCodeError(f"returned {value}; accepted: a finite float")
    if abs(float(value)) > MAX_REWARD:
        raise RewardCodeError(f"returned {_short(value)}; accepted: from {-MAX_REWARD:g} to {MAX_REWARD:g}")
    return float(value)


def _execute(path: str) -> Any:
    """Execute the file as a module; files beside it can be imported."""
    spec = importlib.util.spec_from_file_location("posttrain_user_reward", path)
    if spec is None or spec.loader is None:
        raise RewardCodeError(f"{path}: is not a Python file; accepted: a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(Path(path).parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise RewardCodeError(f"{path} line {error.lineno}: is not valid Python: {error.msg}") from error
    except BaseException as error:
        raise RewardCodeError(f"{path}: cannot be imported: {describe(error)}") from error
    return module


def _check_signature(path: str, name: str, function: Any, expected: Signature) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # written in C: it has no signature
    try:
        signature.bind(*expected.examples)
    except TypeError as error:
        raise RewardCodeError(
            f"{path}: {name}{signature} cannot be called with ({expected.names}); "
            f"accepted: def {expected.written.format(name=name)}"
        ) from error


def describe(error: BaseException) -> str:
    """Return type, text, and the line of the user's file if there is one."""
    where = ""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == "posttrain_user_reward":
            where = f" (line {trace.tb_lineno})"
        trace = trace.tb_next
    return ": ".join(filter(None, (type(error).__name__, _text(error)))) + where


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # it is the user's own class
        return "its text is unavailable"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
