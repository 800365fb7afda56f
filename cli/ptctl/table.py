"""Plain tables like kubectl's: capital headers, three blanks between columns, nothing drawn."""

from __future__ import annotations

from collections.abc import Sequence

GAP = 3


def widths(rows: Sequence[Sequence[str]], at_least: Sequence[int] = ()) -> list[int]:
    """The width of each column."""
    columns = len(rows[0]) if rows else 0
    found = [max(len(row[i]) for row in rows) for i in range(columns)]
    return [max(pair) for pair in zip(found, at_least, strict=True)] if at_least else found


def line(row: Sequence[str], column_widths: Sequence[int]) -> str:
    """One row; a cell that is too wide pushes the rest of its row to the right."""
    return (" " * GAP).join(cell.ljust(width) for cell, width in zip(row, column_widths, strict=True)).rstrip()


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The whole table, without a final newline."""
    everything = [headers, *rows]
    sizes = widths(everything)
    return "\n".join(line(row, sizes) for row in everything)
