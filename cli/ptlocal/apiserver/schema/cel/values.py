"""A value of JSON as rules see it: the types its schema gives, and names that CEL can write."""

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from ptlocal.apiserver.schema.cel.environment import CelError, activation, program

Schema = dict[str, Any]
_KEYWORD = re.compile(
    r"true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|package|namespace|return"
    r"|var|void|while"
)
_ESCAPES = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_TIMES = ("date-time", "date", "duration")


def as_cel(value: Any, schema: Schema) -> Any:
    """Convert a value; raise RecursionError for what is nested too deeply, before the evaluator's own stack ends."""
    if isinstance(value, dict):
        properties: dict[str, Schema] = schema.get("properties") or {}
        rest = _schema(schema.get("additionalProperties"))
        return {
            escaped(key) if key in properties else key: as_cel(item, properties.get(key) or rest)
            for key, item in value.items()
        }
    if isinstance(value, list):
        items = _schema(schema.get("items"))
        return [as_cel(item, items) for item in value]
    if isinstance(value, str):
        return _time(value, schema["format"]) if schema.get("format") in _TIMES else value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value, schema.get("type"))
    return value


def _schema(value: Any) -> Schema:
    """Return the empty schema for what has none, and for what is free (`additionalProperties: true`)."""
    return value if isinstance(value, dict) else {}


@lru_cache(maxsize=4096)
def escaped(name: str) -> str:
    """Return the identifier of a property: `namespace` is `__namespace__`, `a-b` is `a__dash__b`."""
    if _KEYWORD.fullmatch(name):
        return f"__{name}__"
    return re.sub(r"__|[./-]", lambda match: _ESCAPES[match[0]], name)


def _number(value: float, kind: str | None) -> float:
    if kind == "integer" and isinstance(value, float):
        return int(value)
    return float(value) if kind == "number" or not -(2**63) <= value < 2**63 else value


def _time(text: str, form: str) -> Any:
    """Convert to protobuf's message: all the evaluator takes in a map. Imported here, because few rules see any."""
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp

    made: Any = Duration() if form == "duration" else Timestamp()
    try:
        if form == "duration":
            made.FromTimedelta(program("duration(self)").run(activation({"self": text})))
        else:
            parsed = datetime.fromisoformat(text)
            made.FromDatetime(parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC))
    except (ValueError, CelError):
        return text
    return made
