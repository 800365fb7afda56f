"""A user's own reward: a Python file that defines `reward(prompt, completion, row) -> float`.

Loaded once per child process, before the first sample. Each way in which the file can be wrong has its own
message; a wrong return value is said with the value. Nothing is converted: True is not 1 and "1" is not 1,
because a reward that means something else than it says is learned all the same.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
from pathlib import Path
from typing import Any

from pttrainer.rewards import RewardFunction


class RewardCodeError(Exception):
    """The user's reward is missing or broken; the message says where and what is accepted."""


SIGNATURE = "{name}(prompt: str, completion: str, row: dict) -> float"


def load(path: str, function: str) -> RewardFunction:
    """The function in the file; raises RewardCodeError."""
    if not Path(path).is_file():
        raise RewardCodeError(f"{path}: no such file; hint: the path must exist where the trainer runs")
    found = getattr(_execute(path), function, None)
    if found is None:
        raise RewardCodeError(f"{path}: no function {function!r}; accepted: def {SIGNATURE.format(name=function)}")
    _check_signature(path, function, found)
    return found  # type: ignore[no-any-return]


def number(value: Any) -> float:
    """The value that a reward returned; raises RewardCodeError unless it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RewardCodeError(f"returned {_short(value)} ({type(value).__name__}); accepted: a float")
    if not math.isfinite(value):
        raise RewardCodeError(f"returned {value}; accepted: a finite float")
    return float(value)


def _execute(path: str) -> Any:
    """The file as a module; files beside it can be imported."""
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


def _check_signature(path: str, name: str, function: Any) -> None:
    if not callable(function):
        raise RewardCodeError(f"{path}: {name} is not a function but {_short(function)}")
    if inspect.iscoroutinefunction(function):
        raise RewardCodeError(f"{path}: {name} is async; accepted: def {SIGNATURE.format(name=name)}")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # written in C: it cannot be asked
    try:
        signature.bind("", "", {})
    except TypeError as error:
        raise RewardCodeError(
            f"{path}: {name}{signature} cannot be called with (prompt, completion, row); "
            f"accepted: def {SIGNATURE.format(name=name)}"
        ) from error


def describe(error: BaseException) -> str:
    """Type, text, and the line of the user's file where there is one."""
    where = ""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == "posttrain_user_reward":
            where = f" (line {trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{where}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
