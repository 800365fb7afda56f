"""JSON: a list of objects. A .json file that holds JSON Lines is common, and read as such."""

import json
from collections.abc import Iterator

from pttrainer.data.sources.formats import json_lines
from pttrainer.data.sources.formats.record import Record, record
from pttrainer.errors import DataError


def read(content: bytes, where: str) -> Iterator[Record]:
    """Yield a record per object; a syntax error breaks the whole list."""
    content = content.removeprefix(json_lines.BYTE_ORDER_MARK)
    if not content.lstrip().startswith(b"["):
        yield from json_lines.read(content, where)
        return
    try:
        rows = json.loads(content.decode())
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(f"{where} line {line}: is not UTF-8; accepted: JSON in UTF-8") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where} line {error.lineno}: is not valid JSON ({error.msg}); accepted: a list of objects"
        ) from error
    except RecursionError as error:
        raise DataError(f"{where}: is nested too deeply; accepted: a list of objects") from error
    for number, value in enumerate(rows, start=1):
        yield record(number, f"{where} row {number}", value)
