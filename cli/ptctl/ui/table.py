"""Plain tables like kubectl's: upper-case headers, three spaces between columns, no lines."""

import textwrap
from collections.abc import Sequence

GAP = 3


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def line(row: Sequence[str], column_widths: Sequence[int]) -> str:
    """Format one row; a cell that is too wide pushes the rest of its row to the right."""
    return (" " * GAP).join(cell.ljust(width) for cell, width in zip(row, column_widths, strict=True)).rstrip()


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format the table, without a final newline."""
    all_rows = [headers, *rows]
    sizes = widths(all_rows)
    return "\n".join(line(row, sizes) for row in all_rows)


def table_or_records(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> str:
    """Format the table; where it does not fit, one record per row: short cells, then the long last one below."""
    text = table(headers, rows)
    if width is None or max(map(len, text.splitlines())) <= width:
        return text
    lines = []
    for *short, last in rows:
        lines.append("  ".join(cell for cell in short if cell))
        lines.extend(textwrap.wrap(last, max(20, width), initial_indent="  ", subsequent_indent="  "))
    return "\n".join(lines)
