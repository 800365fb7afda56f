"""The subset of kubectl's JSONPath in printer columns: `.a.b`, `['a.b/c']`, `[0]`, `[*]`, `[?(@.type=="X")]`."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

_STEP = re.compile(
    r"""\.(?P<name>[A-Za-z0-9_\-$/]+(?:\\.[A-Za-z0-9_\-$/]+)*)"""
    r"""|\[(?P<index>-?\d+)\]"""
    r"""|(?P<all>\[\*\]|\.\*)"""
    r"""|\[(?P<q>['"])(?P<quoted>.*?)(?P=q)\]"""
    r"""|\[\?\(\s*@(?P<left>[^=!<>]*?)\s*(?P<op>==|!=)\s*(?P<right>.*?)\s*\)\]"""
)
Step = Callable[[list[Any]], list[Any]]


def find(path: str, value: Any) -> list[Any]:
    """Return everything that the path selects; nothing if the path is not supported."""
    values = [value]
    for step in _steps(path):
        values = step(values)
    return values


@lru_cache(maxsize=512)
def _steps(path: str) -> tuple[Step, ...]:
    path = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    if not path.startswith((".", "[")):
        path = f".{path}"
    steps, position = [], 0
    while position < len(path):
        match = _STEP.match(path, position)
        if not match:
            return (lambda values: [],)
        steps.append(_step(match))
        position = match.end()
    return tuple(steps)


def _step(match: re.Match[str]) -> Step:
    if match["name"] is not None or match["quoted"] is not None:
        key = match["name"].replace("\\.", ".") if match["name"] is not None else match["quoted"]
        return lambda values: [v[key] for v in values if isinstance(v, dict) and key in v]
    if match["index"] is not None:
        index = int(match["index"])
        return lambda values: [v[index] for v in values if isinstance(v, list) and -len(v) <= index < len(v)]
    if match["all"] is not None:
        return lambda values: [
            item for v in values for item in (v if isinstance(v, list) else v.values() if isinstance(v, dict) else ())
        ]
    left, wanted, equal = match["left"], match["right"].strip("'\""), match["op"] == "=="
    return lambda values: [
        item for v in values if isinstance(v, list) for item in v if (_text(find(left, item)) == wanted) == equal
    ]


def _text(values: list[Any]) -> str:
    if not values:
        return ""
    return str(values[0]).lower() if isinstance(values[0], bool) else str(values[0])
