"""JSON that others wrote: every way in which a text is no JSON is one ValueError, whose message says why.

Python's own reader also raises UnicodeDecodeError and RecursionError, and takes NaN, which is no JSON.
"""

import json
import sys
from typing import Any, NoReturn


def loads(text: bytes | str) -> Any:
    """Return the value of a JSON text, in UTF-8 if it is bytes; raise ValueError with the reason."""
    try:
        return json.loads(text if isinstance(text, str) else text.decode("utf-8-sig"), parse_constant=_refuse)
    except UnicodeDecodeError:
        reason = "is not UTF-8"
    except RecursionError:
        reason = "nested too deeply"
    except json.JSONDecodeError as error:
        reason = error.msg if error.lineno == 1 else f"{error.msg} in line {error.lineno}"
    except _Constant as error:
        reason = f"{error} is not JSON"
    except ValueError:
        reason = f"a number of more than {sys.get_int_max_str_digits()} digits"
    raise ValueError(reason) from None


class _Constant(ValueError):
    """NaN, Infinity or -Infinity."""


def _refuse(name: str) -> NoReturn:
    raise _Constant(name)
