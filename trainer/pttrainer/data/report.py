"""What a job's data are to its model: what was detected, how long rows are, what is lost, what is learned.

Everything is found by the code that training uses; bad rows are always collected, so that one look shows all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from ptapi.spec import DataSource, PostTrainJobSpec
from pttrainer.data import preference_pairs, prompts, rows, sft_examples
from pttrainer.data.rows import Row, Rows
from pttrainer.data.sources import files
from pttrainer.data.tokenization.chat_template import Chat, Tokens
from pttrainer.errors import DataError
from pttrainer.rewards import NEEDS_ANSWER


class Piece(NamedTuple):
    """A run of text that is learned, or not."""

    text: str
    learned: bool


@dataclass(frozen=True)
class Shown:
    """A row as the model sees it."""

    where: str
    pieces: list[Piece]


@dataclass(frozen=True)
class Report:
    """One data source. lengths: tokens of each readable row, before anything is cut.

    cut: rows longer than the sequence. dropped: rows that are not trained on, the bad ones not counted; unsaid: those
    of them that never had a token to learn. trainable: tokens that are learned; None where the model's own
    completions are. bad: what is wrong with rows that cannot be read.
    """

    part: str
    uri: str
    files: Sequence[str]
    format: str
    columns: dict[str, str]
    rows: int
    lengths: Sequence[int]
    cut: int
    dropped: int
    unsaid: int
    trainable: int | None
    bad: Sequence[str]
    shown: list[Shown]


def inspect(spec: PostTrainJobSpec, part: str, chat: Chat, note: files.Note, shown: int) -> Report:
    """Reads `data.train` or `data.eval` as the job's algorithm would; raises DataError where nothing can be used."""
    source: DataSource = getattr(spec.data, part)
    read = rows.load(source, f"spec.data.{part}", spec.data.system_prompt, skip_bad=True, note=note)
    distill = spec.algorithm.distill
    samples = distill is not None and distill.mode == "on-policy" and distill.student_share == 1.0 and part == "train"
    look = (
        _prompts if samples else {"grpo": _prompts, "ppo": _prompts, "dpo": _pairs}.get(spec.algorithm.kind, _examples)
    )
    return look(spec, part, read, chat, shown)


def document(report: Report) -> dict[str, Any]:
    """The report as JSON."""
    return {
        "part": report.part,
        "uri": report.uri,
        "files": list(report.files),
        "format": report.format,
        "columns": report.columns,
        "rows": report.rows,
        "tokens": statistics(report.lengths) | {"trainable": report.trainable},
        "cut": report.cut,
        "dropped": report.dropped,
        "withoutTrainableToken": report.unsaid,
        "bad": list(report.bad),
        "examples": [
            {"where": row.where, "pieces": [{"text": piece.text, "learned": piece.learned} for piece in row.pieces]}
            for row in report.shown
        ],
    }


def statistics(lengths: Sequence[int]) -> dict[str, int]:
    """Tokens of a row, and of all rows."""
    low, middle, high, top = (int(x) for x in np.percentile(lengths, (0, 50, 95, 100), method="inverted_cdf"))
    return {"min": low, "median": middle, "p95": high, "max": top, "total": int(sum(lengths))}


def _examples(spec: PostTrainJobSpec, part: str, read: Rows, chat: Chat, shown: int) -> Report:
    whole = spec.algorithm.sft is not None and spec.algorithm.sft.loss_on_prompt
    told = spec.algorithm.distill is not None and spec.algorithm.distill.mode == "offline"
    made = sft_examples.make(read, chat, spec.training.sequence_length, learn_prompt=whole, told=told)
    length = spec.training.sequence_length + 1

    def seen(row: Row) -> Tokens:
        tokens = sft_examples.row_tokens(row, chat)
        said = [False, *[True] * (len(tokens.ids) - 1)] if whole else tokens.said
        return Tokens(tokens.ids[:length], said[:length])

    trainable = sum(int(example.learned.sum()) for example in made.examples)
    counts = (made.rows, made.lengths, made.cut, made.dropped, made.unsaid, trainable)
    return _report(part, read, counts, made.bad, [_shown(row, seen(row), chat) for row in _good(read, made.bad, shown)])


def _prompts(spec: PostTrainJobSpec, part: str, read: Rows, chat: Chat, shown: int) -> Report:
    needs_answer = any(reward.builtin in NEEDS_ANSWER for reward in spec.rewards)
    length, field = spec.training.sequence_length, f"spec.data.{part}"
    found = prompts.questions(read, chat, length, field, with_answer=needs_answer)

    def seen(row: Row) -> Tokens:
        ids = chat.prompt_ids(row.prompt, row.tools)
        return Tokens(ids, [False] * len(ids))

    counts = (len(found.lengths), found.lengths, 0, found.too_long, 0, None)
    return _report(
        part, read, counts, found.bad, [_shown(row, seen(row), chat) for row in _good(read, found.bad, shown)]
    )


def _pairs(spec: PostTrainJobSpec, part: str, read: Rows, chat: Chat, shown: int) -> Report:
    """Lengths are the longer answer's; both answers of a row are shown."""
    made = preference_pairs.make(read, chat, spec.training.sequence_length)
    trainable = sum(int(one.learned.sum()) for pair in made.pairs for one in (pair.chosen, pair.rejected))
    counts = (len(made.pairs), made.lengths, made.cut, 0, 0, trainable)
    rows = [
        _shown(replace(row, where=f"{row.where}, {side}"), tokens, chat)
        for row in _good(read, made.bad, shown)
        for side, tokens in zip(("chosen", "rejected"), preference_pairs.pair_tokens(row, chat), strict=True)
    ]
    return _report(part, read, counts, made.bad, rows)


def _report(
    part: str,
    read: Rows,
    counts: tuple[int, Sequence[int], int, int, int, int | None],
    bad: Sequence[DataError],
    shown: list[Shown],
) -> Report:
    columns = dict(read.columns)
    return Report(part, read.uri, read.files, read.format, columns, *counts, [str(error) for error in bad], shown)


def _good(read: Rows, bad: Sequence[DataError], count: int) -> list[Row]:
    """The first rows that nothing is wrong with."""
    wrong = [str(error) for error in bad]
    return [row for row in read.rows[: count + len(wrong)] if not any(w.startswith(f"{row.where}:") for w in wrong)][
        :count
    ]


def _shown(row: Row, tokens: Tokens, chat: Chat) -> Shown:
    runs = groupby(zip(tokens.ids, tokens.said, strict=True), key=lambda pair: pair[1])
    decode = chat.tokenizer.decode
    return Shown(
        row.where, [Piece(decode([token for token, _ in run], skip_special=False), said) for said, run in runs]
    )
