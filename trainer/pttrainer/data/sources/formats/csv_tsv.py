"""CSV and TSV with a header, quoted as spreadsheets do; every cell is text. A row's number is its first line."""

import csv
import io
from collections.abc import Iterator
from functools import partial

from pttrainer.data.sources.formats.record import Record
from pttrainer.errors import DataError

LONGEST_CELL = 2**31 - 1
"""The csv module's own limit is 131,072 characters, less than one long document."""


def read(delimiter: str, content: bytes, where: str) -> Iterator[Record]:
    """Yield a record per row below the header."""
    csv.field_size_limit(LONGEST_CELL)
    rows = csv.reader(io.StringIO(_text(content, where), newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        number = rows.line_num + 1
        here = f"{where} line {number}"
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            # With a quote left open the row's end is unknown, so the rest of the file cannot be read.
            raise DataError(f"{here}: is not valid {_name(delimiter)}: {error}; hint: is a quote left open?") from error
        if not cells:
            continue
        if header is None:
            header = _header(cells, here)
        elif len(cells) != len(header):
            yield Record(number, here, DataError(f"{here}: has {len(cells)} cells; accepted: {len(header)}"))
        else:
            yield Record(number, here, dict(zip(header, cells, strict=True)))


read_commas = partial(read, ",")
read_tabs = partial(read, "\t")


def _header(cells: list[str], here: str) -> list[str]:
    twice = [name for name in cells if cells.count(name) > 1]
    if twice:
        raise DataError(f"{here}: the column {twice[0]!r} appears twice; accepted: a header with distinct names")
    return cells


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(f"{where} line {line}: is not UTF-8; hint: convert the file, for example with iconv") from error


def _name(delimiter: str) -> str:
    return "CSV" if delimiter == "," else "TSV"
