"""Functions and classes of this Python, packed so that they travel with a job.

What a function refers to goes with it: closures, globals, other functions, and modules that are files of yours rather
than installed packages, with local edits. Installed packages travel by name: the image, or `requirements`, has them.
"""

import inspect
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from posttrain.errors import Error
from ptapi import pickled

_IN_THE_IMAGE = ("posttrain", "posttrain_vllm", "ptapi", "ptkube", "ptctl", "ptoperator", "ptlocal", "pttrainer")
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]


def python_file(function: Any, *args: Any, **kwargs: Any) -> tuple[str, str]:
    """Return the name and the text of a Python file that defines the function or class. Raises Error.

    Arguments are bound to it.
    """
    name = name_of(function)
    origin = f"{name} of {getattr(function, '__module__', 'unknown')}, packed by posttrain"
    value = partial(function, *args, **kwargs) if args or kwargs else function
    with _travelling(value, name):
        return name, pickled.python_file(name, value, origin)


def dumps(value: Any, name: str) -> list[bytes | memoryview]:
    """Return a value in parts (`ptapi.pickled`). name: what it is, for messages. Raises Error."""
    with _travelling(value, name):
        return pickled.dumps(value)


def name_of(function: Any) -> str:
    """Return a Python name for a function or class; one without a usable name, such as a lambda, is `function`."""
    name = str(getattr(function, "__name__", "function"))
    return name if name.isidentifier() and name.isascii() else "function"


@contextmanager
def _travelling(value: Any, name: str) -> Iterator[None]:
    """Pickle modules of the user's own whole; raise Error with the name of what cannot travel."""
    try:
        import cloudpickle
    except ImportError as error:
        raise Error("cloudpickle, which packs functions, is not installed", "pip install 'posttrain[cli]'") from error
    registered = [module for module in list(sys.modules.values()) if _is_users_own(module)]
    registered = [module for module in registered if module.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in registered:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    except Exception as error:
        culprit = " -> ".join([name, *_culprit(value, set())])
        hint = "make it inside the function, or pass what it is made of"
        raise Error(f"{culprit} cannot travel to the job: {error}", hint) from error
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _culprit(value: Any, visited: set[int]) -> list[str]:
    """Return the path of names to the innermost part of a value that cannot be pickled."""
    visited.add(id(value))
    for name, part in _parts(value):
        if id(part) not in visited and not _is_picklable(part):
            deeper = _culprit(part, visited)
            return [name, *deeper] if deeper else [f"{name} ({type(part).__name__})"]
    return []


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value refers to, by name."""
    if isinstance(value, partial):
        names = list(inspect.signature(value.func).parameters)
        yield from _parts(value.func)
        yield from (dict(zip(names, value.args, strict=False)) | value.keywords).items()
        return
    function = inspect.unwrap(value) if callable(value) and hasattr(value, "__wrapped__") else value
    if inspect.ismethod(function):
        yield "self", function.__self__
        function = function.__func__
    if inspect.isfunction(function):
        variables = inspect.getclosurevars(function)
        yield from {**variables.nonlocals, **variables.globals}.items()
        yield from inspect.signature(function).parameters.items()
    elif isinstance(value, dict):
        yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif not isinstance(value, ModuleType) and hasattr(value, "__dict__"):
        yield from vars(value).items()


def _is_picklable(value: Any) -> bool:
    try:
        pickled.dumps(value)
    except Exception:  # a class's own pickling may raise anything
        return False
    return True


def _is_users_own(module: ModuleType) -> bool:
    """Return True for a module that is a Python file outside installed packages and the standard library."""
    file, name = getattr(module, "__file__", None), getattr(module, "__name__", "__main__")
    if not file or not file.endswith(".py") or name == "__main__" or name.partition(".")[0] in _IN_THE_IMAGE:
        return False
    parts = Path(file).parts
    is_installed = "site-packages" in parts or "dist-packages" in parts or Path(file).is_relative_to(_STANDARD_LIBRARY)
    return sys.modules.get(name) is module and not is_installed
