"""`python -m pttrainer data`: a job's data as its model will see them, before anything is trained.

    python -m pttrainer data job.yaml
    python -m pttrainer data job.yaml --part eval -o json

Colour shows what is learned; brackets do where there is no terminal, or NO_COLOR is set. Ends as a run on these data
would: 65 where a row is bad and `data.onBadRow` is `fail`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptapi.text.terminal import printable
from pttrainer.commands import note, thumbnail
from pttrainer.commands.exit import exit_code_of
from pttrainer.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pttrainer.data.data_check import Images, Report, Shown

PARTS = ("train", "eval")
BAD_SHOWN = 20
"""Most bad rows to list; `-o json` has all."""
LONGEST_SHOWN = 2000
"""Most characters of an example to show."""
LEARNED, PLAIN = "\x1b[32m", "\x1b[0m"


def add_to(commands: Any) -> None:
    """Add the verb's options."""
    parser = commands.add_parser(
        "data",
        help="show a job's data as its model will see them",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", type=Path, help="file that holds a PostTrainJob")
    parser.add_argument("--part", choices=PARTS, help="only data.train or data.eval")
    parser.add_argument("--examples", type=int, default=3, metavar="COUNT", help="rows to show with their mask (3)")
    parser.add_argument("--no-images", action="store_true", help="no thumbnails, where the terminal can show them")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.set_defaults(run=lambda options: exit_code_of(lambda: run(options)))


def run(options: argparse.Namespace) -> None:
    """Read, tokenise and report the data. Raises DataError if a run would end on them."""
    from pttrainer.training.job_file import read_job

    job = read_job(options.job)
    if options.examples < 0:
        raise ConfigError(f"--examples: {options.examples}: accepted: 0 or more")
    parts = [part for part in PARTS if getattr(job.spec.data, part) is not None and options.part in (None, part)]
    if not parts:
        raise ConfigError(f"spec.data.{options.part}: unset; accepted: a data source to look at")
    from pttrainer.data import data_check
    from pttrainer.models.loading.model_loader import open_chat

    chat = open_chat(job.spec.model, note)
    reports = [data_check.inspect(job.spec, part, chat, note, options.examples) for part in parts]
    if options.output == "json":
        print(json.dumps({"data": [data_check.document(item) for item in reports]}, indent=2, ensure_ascii=False))
    else:
        pictures = not options.no_images and thumbnail.is_possible(sys.stdout)
        shown = (text(item, job.spec.training.sequence_length, colour=_colour(), pictures=pictures) for item in reports)
        print("\n\n".join(shown))
    bad = [(item, error) for item in reports for error in item.bad]
    if bad and job.spec.data.on_bad_row == "fail":
        raise DataError(f"{len(bad)} bad rows; the first: {bad[0][1]}; hint: fix them, or set spec.data.onBadRow: skip")


def text(report: Report, length: int, *, colour: bool, pictures: bool = False) -> str:
    """Return the report for a person. pictures: with thumbnails of images."""
    from pttrainer.data.data_check import statistics

    numbers = statistics(report.lengths)
    per_row = ", ".join(f"{name} {numbers[name]:,}" for name in ("min", "median", "p95", "max"))
    learned = "" if report.trainable is None else f", {report.trainable:,} to learn"
    reason = (
        "no room for a completion"
        if report.trainable is None
        else f"no token to learn, {report.without_target} even uncut"
    )
    lines = [
        f"data.{report.part}: {report.uri}",
        f"  files    {len(report.files)}: {', '.join(name.rpartition('/')[2] for name in report.files[:3])}"
        + (", …" if len(report.files) > 3 else ""),
        f"  format   {report.format} ({', '.join(f'{part}: {name}' for part, name in report.columns.items())})",
        f"  rows     {report.rows:,}, {len(report.bad):,} bad",
        f"  tokens   {numbers['total']:,}{learned}; per row: {per_row}",
        *([] if report.images is None else [_images(report.images)]),
        *([] if report.desirable is None else [f"  labels   {_labels(report.rows, report.desirable)}"]),
        f"  cut      {report.cut:,} rows (longer than sequenceLength {length:,})",
        f"  dropped  {report.dropped:,} rows ({reason})",
    ]
    lines += [f"  bad      {error}" for error in report.bad[:BAD_SHOWN]]
    if len(report.bad) > BAD_SHOWN:
        lines.append(f"  bad      … and {len(report.bad) - BAD_SHOWN:,} more; -o json has all")
    for row in report.shown:
        lines += [
            "",
            f"  {row.where}",
            *(f"    {line}" for line in _masked(row, colour=colour, pictures=pictures).split("\n")),
        ]
    return "\n".join(lines)


def _labels(rows: int, desirable: int) -> str:
    return f"{desirable:,} desirable, {rows - desirable:,} undesirable"


def _images(images: Images) -> str:
    facts = images.document()
    smallest, largest = (f"{width:,} x {height:,}" for width, height in (facts["smallest"], facts["largest"]))
    fewest, most = facts["fewestTokens"], facts["tokensEach"]
    tokens = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    return f"  images   {facts['count']:,}, {tokens} tokens each; {smallest} to {largest} pixels"


def _masked(row: Shown, *, colour: bool, pictures: bool) -> str:
    from pttrainer.data.sources.images import decoding

    opening, closing = (LEARNED, PLAIN) if colour else ("[[", "]]")
    shown, left = "", LONGEST_SHOWN
    for piece in row.pieces:
        # A colour does not last over the line's end in every pager, so each line has its own.
        body = printable(piece.text[:left])
        shown += "\n".join(f"{opening}{line}{closing}" for line in body.split("\n")) if piece.learned else body
        if pictures and piece.image is not None:
            shown += "\n" + "\n".join(thumbnail.lines(decoding.picture(piece.image))) + "\n"
        left -= len(piece.text)
        if left < 0:
            return f"{shown} …"
    return shown


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
