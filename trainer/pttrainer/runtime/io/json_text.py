"""JSON that others wrote: every way in which a text is no JSON is one error, whose message says why.

Python's own reader also raises UnicodeDecodeError and RecursionError, and takes NaN, which is no JSON.
"""

import json
import sys
from typing import Any, NoReturn


class JsonError(ValueError):
    """A text that is no JSON; the message begins with `is` or `has`. line: where it is noticed, if that is known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def loads(text: bytes | str, *, unique_keys: bool = False) -> Any:
    """Return the value of a JSON text, in UTF-8 if it is bytes; raise JsonError.

    unique_keys: refuse an object with a key twice, where other readers keep the last value.
    """
    checked = _with_unique_keys if unique_keys else None
    try:
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=checked)
    except UnicodeDecodeError as error:
        raise JsonError("is not UTF-8", error.object[: error.start].count(b"\n") + 1) from None
    except RecursionError:
        raise JsonError("is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise JsonError(f"is not valid JSON ({error.msg})", error.lineno) from None
    except JsonError:
        raise
    except ValueError:
        raise JsonError(f"has a number of more than {sys.get_int_max_str_digits()} digits") from None


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise JsonError(f"has the key {twice!r} twice")
    return values


def _refuse(name: str) -> NoReturn:
    raise JsonError(f"is not valid JSON ({name})")
