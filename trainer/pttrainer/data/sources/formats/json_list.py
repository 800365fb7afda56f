"""JSON: a list of objects. A .json file that holds JSON Lines is common, and read as such."""

from collections.abc import Iterator

from pttrainer.data.sources.formats import json_lines
from pttrainer.data.sources.formats.record import Record, record
from pttrainer.errors import DataError
from pttrainer.runtime.io import json_text


def read(content: bytes, where: str) -> Iterator[Record]:
    """Yield a record per object; a syntax error breaks the whole list."""
    content = content.removeprefix(json_lines.BYTE_ORDER_MARK)
    if not content.lstrip().startswith(b"["):
        yield from json_lines.read(content, where)
        return
    try:
        rows = json_text.loads(content, unique_keys=True)
    except json_text.JsonError as error:
        here = where if error.line is None else f"{where} line {error.line}"
        raise DataError(f"{here}: {error}; accepted: a list of objects, each key once, in UTF-8") from error
    for number, value in enumerate(rows, start=1):
        yield record(number, f"{where} row {number}", value)
