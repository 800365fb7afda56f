"""A report on a job's data: detected format, length of rows, what is lost, what is learned.

Everything comes from the code that training uses; bad rows are always collected, so that one report shows all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from ptapi.spec import DataSource, PostTrainJobSpec
from pttrainer.data import prompts, rows, sft_examples
from pttrainer.data.preferences import pairs, unpaired
from pttrainer.data.rows import Row, Rows
from pttrainer.data.sources import files
from pttrainer.data.sources.images import decoding
from pttrainer.data.sources.images.decoding import CheckedImage
from pttrainer.data.sources.images.references import ImageReference
from pttrainer.data.tokenization.chat_template import Chat, Tokens
from pttrainer.errors import DataError
from pttrainer.rewards import NEEDS_ANSWER


class Piece(NamedTuple):
    """A run of text that is learned, or not; images are named by their size."""

    text: str
    learned: bool
    image: ImageReference | None = None


@dataclass(frozen=True)
class Shown:
    """A row as the model sees it."""

    where: str
    pieces: list[Piece]


@dataclass(frozen=True)
class Images:
    """The images of all rows that are trained on: each one's width and height, and its tokens."""

    sizes: Sequence[tuple[int, int]]
    tokens: Sequence[int]

    def document(self) -> dict[str, Any]:
        """Return counts and the least and most pixels as JSON."""
        by_pixels = sorted(self.sizes, key=lambda size: size[0] * size[1])
        return {
            "count": len(self.sizes),
            "tokensEach": max(self.tokens),
            "fewestTokens": min(self.tokens),
            "smallest": list(by_pixels[0]),
            "largest": list(by_pixels[-1]),
        }


@dataclass(frozen=True)
class Report:
    """One data source. lengths: tokens of each readable row, before anything is cut.

    cut: rows longer than the sequence. dropped: rows that are not trained on, not counting bad ones;
    without_target: those of them that never had a token to learn. trainable: number of learned tokens; None if the
    model's own completions are. bad: errors of rows that cannot be read. desirable: of labelled rows, the good ones.
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
    without_target: int
    trainable: int | None
    bad: Sequence[str]
    shown: list[Shown]
    images: Images | None = None
    desirable: int | None = None


def inspect(spec: PostTrainJobSpec, part: str, chat: Chat, note: files.Note, shown: int) -> Report:
    """Read `data.train` or `data.eval` as the job's algorithm would; raise DataError if nothing is usable."""
    source: DataSource = getattr(spec.data, part)
    https = spec.data.allow_https_images
    read = rows.load(source, f"spec.data.{part}", spec.data.system_prompt, skip_bad=True, note=note, https=https)
    distill = spec.algorithm.distill
    samples = distill is not None and distill.mode == "on-policy" and distill.student_share == 1.0 and part == "train"
    look = (
        _prompts
        if samples
        else {
            "grpo": _prompts,
            "ppo": _prompts,
            "raft": _prompts,
            "sdpo": _prompts,
            "dpo": _pairs,
            "reward": _pairs,
            "kto": _labelled,
        }.get(spec.algorithm.kind, _examples)
    )
    return look(spec, part, read, chat, shown)


def document(report: Report) -> dict[str, Any]:
    """Return the report as JSON."""
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
        "withoutTrainableToken": report.without_target,
        "images": None if report.images is None else report.images.document(),
        "desirable": report.desirable,
        "bad": list(report.bad),
        "examples": [
            {"where": row.where, "pieces": [{"text": piece.text, "learned": piece.learned} for piece in row.pieces]}
            for row in report.shown
        ],
    }


def statistics(lengths: Sequence[int]) -> dict[str, int]:
    """Return statistics of the number of tokens per row, and their total."""
    low, middle, high, top = (int(x) for x in np.percentile(lengths, (0, 50, 95, 100), method="inverted_cdf"))
    return {"min": low, "median": middle, "p95": high, "max": top, "total": int(sum(lengths))}


def _examples(spec: PostTrainJobSpec, part: str, read: Rows, chat: Chat, shown: int) -> Report:
    learn_prompt = spec.algorithm.sft is not None and spec.algorithm.sft.loss_on_prompt
    with_teacher = spec.algorithm.distill is not None and spec.algorithm.distill.mode == "offline"
    result = sft_examples.make(
        read, chat, spec.training.sequence_length, learn_prompt=learn_prompt, with_teacher=with_teacher
    )
    length = spec.training.sequence_length + 1

    def visible(row: Row) -> dict[str, Tokens]:
        tokens = sft_examples.row_tokens(row, chat, decoding.checked(row.images))
        assistant_mask = [False, *[True] * (len(tokens.ids) - 1)] if learn_prompt else tokens.assistant_mask
        return {row.where: Tokens(tokens.ids[:length], assistant_mask[:length])}

    trainable = sum(int(example.learned.sum()) for example in result.examples)
    counts = (result.rows, result.lengths, result.cut, result.dropped, result.without_target, trainable)
    report = _report(part, read, counts, result.bad, _shown(read, result.bad, shown, chat, visible))
    return _with_images(report, chat, [example.images for example in result.examples])


def _prompts(spec: PostTrainJobSpec, part: str, read: Rows, chat: Chat, shown: int) -> Report:
    needs_answer = any(reward.builtin in NEEDS_ANSWER for reward in spec.rewards)
    length, field = spec.training.sequence_length, f"spec.data.{part}"
    result = prompts.questions(read, chat, length, field, with_answer=needs_answer)

    def visible(row: Row) -> dict[str, Tokens]:
        ids = chat.prompt_ids(decoding.sized(row.prompt, decoding.checked(row.images)), row.tools)
        return {row.where: Tokens(ids, [False] * len(ids))}

    counts = (len(result.lengths), result.lengths, 0, result.too_long, 0, None)
    report = _report(part, read, counts, result.bad, _shown(read, result.bad, shown, chat, visible))
    return _with_images(report, chat, [question.images for question in result.fitting])


def _pairs(spec: PostTrainJobSpec, part: str, read: Rows, chat: Chat, shown: int) -> Report:
    """Report pairs; lengths are the longer answer's, and both answers of a row are shown."""
    result = pairs.make(read, chat, spec.training.sequence_length)
    trainable = sum(int(example.learned.sum()) for pair in result.pairs for example in (pair.chosen, pair.rejected))
    counts = (len(result.pairs), result.lengths, result.cut, 0, 0, trainable)

    def visible(row: Row) -> dict[str, Tokens]:
        chosen, rejected = pairs.pair_tokens(row, chat, decoding.checked(row.images))
        return {f"{row.where}, chosen": chosen, f"{row.where}, rejected": rejected}

    report = _report(part, read, counts, result.bad, _shown(read, result.bad, shown, chat, visible))
    return _with_images(report, chat, [pair.chosen.images for pair in result.pairs])


def _with_images(report: Report, chat: Chat, of_rows: Sequence[Sequence[CheckedImage]]) -> Report:
    sizes = [image.size for images in of_rows for image in images]
    if not sizes or chat.images is None:
        return report
    return replace(report, images=Images(sizes, [chat.images.count(size) for size in sizes]))


def _labelled(spec: PostTrainJobSpec, part: str, read: Rows, chat: Chat, shown: int) -> Report:
    """Report answers labelled one by one; a preference is two of them."""
    label = getattr(spec.data, part).columns.label
    result = unpaired.make(read, chat, spec.training.sequence_length, label)
    trainable = sum(int(example.learned.sum()) for example in result.examples)
    counts = (len(result.answers), result.lengths, result.cut, 0, 0, trainable)

    def visible(row: Row) -> dict[str, Tokens]:
        answers = unpaired.answers_of(row, label)
        return {f"{row.where}, {_word(answer.is_desirable)}": answer.tokens(chat) for answer in answers}

    report = _report(part, read, counts, result.bad, _shown(read, result.bad, shown, chat, visible))
    return replace(report, desirable=result.desirable)


def _word(is_desirable: bool) -> str:
    return "desirable" if is_desirable else "undesirable"


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
    """Return the first rows without errors."""
    wrong = [str(error) for error in bad]
    return [row for row in read.rows[: count + len(wrong)] if not any(w.startswith(f"{row.where}:") for w in wrong)][
        :count
    ]


def _shown(
    read: Rows, bad: Sequence[DataError], count: int, chat: Chat, visible: Callable[[Row], dict[str, Tokens]]
) -> list[Shown]:
    return [
        Shown(where, _pieces(tokens, chat, row))
        for row in _good(read, bad, count)
        for where, tokens in visible(row).items()
    ]


def _pieces(tokens: Tokens, chat: Chat, row: Row) -> list[Piece]:
    """Return a row's pieces. An image's lines of tokens, with what parts them, are one."""
    part_id = None if chat.images is None else chat.images.part_id
    images, left = iter(decoding.checked(row.images)), 0
    kinds = zip(tokens.ids, tokens.assistant_mask, strict=True)
    pieces = []
    for (learned, is_image), run in groupby(kinds, key=lambda pair: (pair[1], pair[0] == part_id)):
        ids = [token for token, _ in run]
        if is_image and not left:
            image = next(images)
            (width, height), left = image.size, 0 if chat.images is None else chat.images.count(image.size)
            pieces.append(Piece(f"[image {width} x {height}: {left} tokens]", False, image.reference))
        if is_image:
            left -= len(ids)
        elif not left:
            pieces.append(Piece(chat.tokenizer.decode(ids, skip_special=False), learned))
    return pieces
