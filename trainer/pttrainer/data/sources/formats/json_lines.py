"""JSON Lines: one object per line. Blank lines are skipped; lines are counted as an editor does."""

import json
from collections.abc import Iterator

from pttrainer.data.sources.formats.record import Record, record
from pttrainer.errors import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some editors write it before UTF-8."""


def read(content: bytes, where: str) -> Iterator[Record]:
    """Yield a record per line that is not blank."""
    for number, line in enumerate(content.removeprefix(BYTE_ORDER_MARK).split(b"\n"), start=1):
        if line.strip():
            yield _line(number, line, f"{where} line {number}")


def _line(number: int, line: bytes, here: str) -> Record:
    try:
        return record(number, here, json.loads(line.decode()))
    except UnicodeDecodeError:
        reason = "is not UTF-8"
    except json.JSONDecodeError as error:
        reason = error.msg
    except RecursionError:
        reason = "nested too deeply"
    return Record(number, here, DataError(f"{here}: is not valid JSON ({reason}); accepted: one JSON object a line"))
