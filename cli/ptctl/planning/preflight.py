"""Run `ptctl plan`: the trainer's preflight in a child process; its result as text, a file and an exit code."""

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
from ptctl.errors import BROKEN_PIPE, FAILED, INTERRUPTED, USAGE
from ptctl.planning import fit_search, matrix_view
from ptctl.planning.prices import Prices
from ptctl.ui.app import App
from ptkube.resources import Manifest

_EXIT_CODES = {
    0: 0,
    int(ExitCode.OUT_OF_MEMORY_HBM): FAILED,
    int(ExitCode.CONFIG_ERROR): USAGE,
    INTERRUPTED: INTERRUPTED,
    BROKEN_PIPE: BROKEN_PIPE,
}


def verdict(
    app: App, job: PostTrainJob, depth: str, price: float | None, prices: Prices | None, form: str, *, here: bool
) -> int:
    """Check whether the job fits and return the exit code."""
    quick = ["--quick"] if depth == "formula" else ["--depth", depth]
    chip_price = price if price is not None or prices is None else prices.chip_hour.get(_generation(job))
    args = ["--output", form, *quick, *([] if chip_price is None else ["--price", str(chip_price)])]
    for generation, hour_price in () if prices is None else prices.chip_hour.items():
        args += ["--chip-hour", f"{generation}={hour_price}"]
    if here:
        args.append("--here")
    # --here needs a fresh process: JAX must start this machine's devices itself.
    forked = depth == "formula" and not here
    return _exit_code(app, trainer_process.trainer_code(job, "preflight", *args, forked=forked))


def fit(app: App, body: Manifest, job: PostTrainJob, keep: Sequence[str], quick: bool, target: str | None) -> int:
    """Find the smallest change that makes the job fit, print it and return the exit code."""
    args = ["--fit", *(["--quick"] if quick else []), *(arg for part in keep for arg in ("--keep", part))]
    code, result = _run_and_read(job, args, forked=quick)
    if result is not None:
        fit_search.show(app.console, body, job, result, None if target in (None, "-", "yaml") else target)
    return _exit_code(app, code)


def matrix(
    app: App, job: PostTrainJob, accelerators: Sequence[str], batches: Sequence[int], prices: Prices | None, target: str
) -> int:
    """Print which accelerators and batch sizes fit, and return the exit code."""
    if not matrix_view.is_accepted(target):
        raise click.UsageError(f"-o {target}: accepted: text, json, csv, or a .txt, .json, .csv or .png file.")
    for name in accelerators:
        resolve(name)  # raises SpecError with the accepted types
    args = [arg for name in accelerators for arg in ("--accelerator", name)]
    args += [arg for size in batches for arg in ("--batch-size", str(size))]
    code, result = _run_and_read(job, ["--matrix", *args], forked=True)
    if result is None:
        return _exit_code(app, code)
    title = f"{job.spec.model.uri}, {job.spec.algorithm.label}, rows of {job.spec.training.sequence_length} tokens"
    matrix_view.show(app.console, result, prices, title, target)
    return 0


def smallest(app: App, job: PostTrainJob) -> tuple[int, Any]:
    """Return the exit code, and each generation's smallest slice that holds the job; None if the job is invalid."""
    code, options = _run_and_read(job, ["--smallest"], forked=True)
    return _exit_code(app, code), options


def _run_and_read(job: PostTrainJob, args: Sequence[str], *, forked: bool) -> tuple[int, Any]:
    """Return the trainer's exit code and the result that it wrote; None if it wrote nothing."""
    with tempfile.TemporaryDirectory(prefix="ptctl-plan-") as folder:
        file = Path(folder) / "result.json"
        code = trainer_process.trainer_code(job, "preflight", *args, "--write", str(file), forked=forked)
        return code, json.loads(file.read_text()) if file.exists() else None


def _exit_code(app: App, code: int) -> int:
    if code not in _EXIT_CODES:
        app.console.say(f"the trainer exited with code {code}")
    return _EXIT_CODES.get(code, FAILED)


def _generation(job: PostTrainJob) -> str:
    requested = job.spec.accelerator
    return resolve(requested.type, requested.topology, requested.slices).generation
