"""A teacher's log-probs of a row's tokens, from the columns `teacher_ids` and `teacher_logprobs`.

Each is a list with an entry per assistant token, its end token included, in order; an entry lists the K tokens most
likely to the teacher, and their natural log-probs. K is the same for all rows.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pttrainer.errors import DataError

IDS, LOGPROBS = "teacher_ids", "teacher_logprobs"


class TeacherLogprobs(NamedTuple):
    """ids: [n, K] int32, logps: [n, K] float32, of the n learned tokens."""

    ids: np.ndarray
    logps: np.ndarray


def read(fields: Mapping[str, Any], where: str, learned: int, outcomes: int, size: int) -> TeacherLogprobs:
    """Return the teacher's log-probs of one row with this many learned tokens; raise DataError.

    outcomes: K of the previous rows, 0 for the first; size: of the vocabulary.
    """
    ids, logps = (_table(fields, column, where) for column in (IDS, LOGPROBS))
    if ids.shape != logps.shape:
        raise DataError(
            f"{where}: {IDS} is {_size(ids)} and {LOGPROBS} {_size(logps)}; accepted: both of the same size"
        )
    if len(ids) != learned:
        raise DataError(
            f"{where}: {IDS} has {len(ids)} entries; accepted: {learned}, one per token that the assistant says, its "
            "end token included; hint: python -m pttrainer data shows which tokens are learned"
        )
    if outcomes and ids.shape[1] != outcomes:
        raise DataError(
            f"{where}: {IDS} lists {ids.shape[1]} tokens per entry; accepted: {outcomes}, as in the rows before"
        )
    if ids.min(initial=0) < 0 or ids.max(initial=0) >= size:
        raise DataError(
            f"{where}: {IDS} holds {int(ids.min())} to {int(ids.max())}; accepted: ids from 0 to {size - 1}"
        )
    if not (np.isfinite(logps).all() and logps.max(initial=0.0) <= 1e-3):
        raise DataError(f"{where}: {LOGPROBS} are not all log-probs; accepted: finite numbers up to 0")
    return TeacherLogprobs(ids.astype(np.int32), logps.astype(np.float32))


def _table(fields: Mapping[str, Any], column: str, where: str) -> np.ndarray:
    try:
        table = np.asarray(fields.get(column), np.float64)
    except (TypeError, ValueError):
        table = np.zeros(())
    if table.ndim != 2 or not table.shape[1]:
        raise DataError(f"{where}: no {column!r} as a list of lists of equal length; it has: {', '.join(fields)}")
    return table


def _size(table: np.ndarray) -> str:
    return f"{table.shape[0]} x {table.shape[1]}"
