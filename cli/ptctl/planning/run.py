"""What `ptctl plan` does: the trainer's preflight in a child, its answer as text, a file and an exit code."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ptapi.accelerators import resolve
from ptapi.failures import ExitCode
from ptapi.spec import PostTrainJob
from ptctl import trainer_process
from ptctl.errors import FAILED, INTERRUPTED, USAGE
from ptctl.planning import fit_search
from ptctl.planning import matrix as cells
from ptctl.planning.prices import Prices
from ptctl.ui.app import App
from ptkube.resources import Manifest

_VERDICTS = {0: 0, int(ExitCode.OUT_OF_MEMORY_HBM): FAILED, int(ExitCode.CONFIG_ERROR): USAGE, INTERRUPTED: INTERRUPTED}


def verdict(
    app: App, job: PostTrainJob, depth: str, price: float | None, prices: Prices | None, form: str, *, here: bool
) -> int:
    """Whether it fits."""
    if form not in ("text", "json"):
        raise click.UsageError(f"-o {form}: accepted: text, json; with --matrix csv or a file, with --fit a file.")
    quick = ["--quick"] if depth == "formula" else ["--depth", depth]
    asked = price if price is not None or prices is None else prices.chip_hour.get(_generation(job))
    words = ["--output", form, *quick, *([] if asked is None else ["--price", str(asked)])]
    for generation, each in () if prices is None else prices.chip_hour.items():
        words += ["--chip-hour", f"{generation}={each}"]
    if here:
        words.append("--here")
    # The devices of this machine are started by a process that has done nothing before.
    is_forked = depth == "formula" and not here
    return _code(app, trainer_process.trainer_code(job, "preflight", *words, forked=is_forked))


def fit(app: App, body: Manifest, job: PostTrainJob, keep: Sequence[str], quick: bool, target: str | None) -> int:
    """The smallest change with which it fits."""
    words = ["--fit", *(["--quick"] if quick else []), *(word for each in keep for word in ("--keep", each))]
    code, found = _written(job, words, forked=quick)
    if found is not None:
        fit_search.show(app.console, body, job, found, None if target in (None, "-", "yaml") else target)
    return _code(app, code)


def matrix(
    app: App,
    job: PostTrainJob,
    accelerators: Sequence[str],
    batches: Sequence[int],
    prices: Prices | None,
    target: str,
) -> int:
    """What fits on which chips."""
    if not cells.is_accepted(target):
        raise click.UsageError(f"-o {target}: accepted: text, json, csv, or a file that ends so or in .txt, .png.")
    for name in accelerators:
        resolve(name)  # raises SpecError, which names what is accepted
    words = [word for name in accelerators for word in ("--accelerator", name)]
    words += [word for size in batches for word in ("--batch-size", str(size))]
    code, found = _written(job, ["--matrix", *words], forked=True)
    if found is None:
        return _code(app, code)
    title = f"{job.spec.model.uri}, {job.spec.algorithm.label}, rows of {job.spec.training.sequence_length} tokens"
    cells.show(app.console, found, prices, title, target)
    return 0


def _written(job: PostTrainJob, words: Sequence[str], *, forked: bool) -> tuple[int, Any]:
    """The trainer's exit code and what it wrote; None where it wrote nothing."""
    with tempfile.TemporaryDirectory(prefix="ptctl-plan-") as folder:
        file = Path(folder) / "answer.json"
        code = trainer_process.trainer_code(job, "preflight", *words, "--write", str(file), forked=forked)
        return code, json.loads(file.read_text()) if file.exists() else None


def _code(app: App, code: int) -> int:
    if code not in _VERDICTS:
        app.console.say(f"the trainer ended with exit code {code}")
    return _VERDICTS.get(code, FAILED)


def _generation(job: PostTrainJob) -> str:
    asked = job.spec.accelerator
    return resolve(asked.type, asked.topology, asked.slices).generation
