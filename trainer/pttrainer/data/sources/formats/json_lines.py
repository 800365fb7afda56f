"""JSON Lines: one object per line. Blank lines are skipped; lines are counted as an editor does."""

from collections.abc import Iterator

from pttrainer.data.sources.formats.record import Record, record
from pttrainer.errors import DataError
from pttrainer.runtime.io import json_text

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some editors write it before UTF-8."""


def read(content: bytes, where: str) -> Iterator[Record]:
    """Yield a record per line that is not blank."""
    for number, line in enumerate(content.removeprefix(BYTE_ORDER_MARK).split(b"\n"), start=1):
        if line.strip():
            yield _line(number, line, f"{where} line {number}")


def _line(number: int, line: bytes, here: str) -> Record:
    try:
        return record(number, here, json_text.loads(line, unique_keys=True))
    except ValueError as error:
        return Record(number, here, DataError(f"{here}: {error}; accepted: one JSON object a line, each key once"))
