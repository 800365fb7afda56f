"""Which columns hold what: recognised by their usual names, or as the job names them; the first good row decides."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ptapi.spec import Columns, DataSource
from pttrainer.errors import DataError

USUAL: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "conversations"),
    "prompt": ("prompt", "question", "instruction"),
    "completion": ("completion", "response", "output"),
    "answer": ("answer", "solution"),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
    "text": ("text",),
    "images": ("images", "image"),
}
"""Column names that are recognised by default."""

FORMATS: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "preference": ("chosen", "rejected"),
    "prompt-completion": ("prompt", "completion"),
    "prompt-answer": ("prompt", "answer"),
    "text": ("text",),
    "prompt-only": ("prompt",),
}
"""Columns that a format needs, in the order in which `auto` tries them."""


@dataclass(frozen=True)
class Reading:
    """How rows are read; the first good row decides."""

    format: str
    columns: Mapping[str, str]

    @property
    def used(self) -> dict[str, str]:
        """Return the column of each part that the format reads."""
        parts = (*FORMATS[self.format], *["images"] * ("images" in self.columns))
        return {part: self.columns[part] for part in parts}


def recognise(source: DataSource, first: Mapping[str, Any], where: str, field: str) -> Reading:
    """Return how the rows of a source are read, from its first good row. Raise DataError."""
    columns = _columns(source.columns, first, where)
    return Reading(_format(source, columns, first, field), columns)


def _columns(named: Columns, first: Mapping[str, Any], where: str) -> dict[str, str]:
    """Map each part to its column. A column that the user names must exist."""
    columns: dict[str, str] = {}
    for part, usual in USUAL.items():
        name = getattr(named, part)
        if name is not None and name not in first:
            raise DataError(f"{where}: no column {name!r} (data.columns.{part}); it has: {', '.join(first)}")
        present = [name] if name is not None else [column for column in usual if column in first]
        if present:
            columns[part] = present[0]
    return columns


def _format(source: DataSource, columns: Mapping[str, str], first: Mapping[str, Any], field: str) -> str:
    if source.format != "auto":
        missing = [part for part in FORMATS[source.format] if part not in columns]
        if missing:
            raise DataError(
                f"{source.uri}: format {source.format} needs the column {missing[0]} (usually "
                f"{' or '.join(USUAL[missing[0]])}); it has: {', '.join(first)}; hint: set {field}.columns.{missing[0]}"
            )
        return source.format
    for form, needed in FORMATS.items():
        if all(part in columns for part in needed):
            return form
    accepted = "; ".join(f"{form}: {' + '.join(needed)}" for form, needed in FORMATS.items())
    raise DataError(
        f"{source.uri}: format not recognised from the columns {', '.join(first) or '(none)'}; accepted: {accepted}; "
        f"hint: name them in {field}.columns"
    )
