"""A row as its file format yields it."""

from typing import Any, NamedTuple

from pttrainer.data.conversation import kind
from pttrainer.errors import DataError


class Record(NamedTuple):
    """where: file and line or row. value: its columns, or its error."""

    number: int
    where: str
    value: dict[str, Any] | DataError


def record(number: int, where: str, value: Any) -> Record:
    """Return a JSON value as a record; anything but an object is a bad row."""
    if isinstance(value, dict):
        return Record(number, where, value)
    return Record(number, where, DataError(f"{where}: is {kind(value)}; accepted: a JSON object"))
