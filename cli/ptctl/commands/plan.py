"""`ptctl plan`: whether a job fits its chips, found by the trainer's own code in a child process."""

from __future__ import annotations

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command import Verb
from ptctl.ui.lazy_group import SETTINGS
from ptctl.ui.options import assignments, job_file

_EXAMPLES = """
ptctl plan -f job.yaml
ptctl plan -f job.yaml --quick
ptctl plan -f job.yaml --set accelerator.type=v6e-32 --set training.lora.rank=16
ptctl plan -f job.yaml -o json | jq .peak
ptctl plan -f job.yaml --here
ptctl plan -f job.yaml --fit -o fitting.yaml
ptctl plan -f job.yaml --fit --keep method --keep length
ptctl plan -f job.yaml --matrix --prices prices.yaml
ptctl plan -f job.yaml --matrix --accelerator v6e-16 --accelerator v5p-16 --batch-size 64 -o matrix.png
"""


@click.command("plan", cls=Verb, context_settings=SETTINGS, examples=_EXAMPLES)
@job_file()
@assignments
@click.option("--quick", is_flag=True, help="The formula alone: no compiler, no JAX, half a second.")
@click.option(
    "--depth",
    type=click.Choice(["auto", "fast", "full"]),
    default="auto",
    help="How far to compile: fast, full (as training does), auto (full only where fast leaves a doubt).",
)
@click.option("--here", is_flag=True, help="On this machine's devices (GPUs), in place of the job's accelerator.")
@click.option("--fit", is_flag=True, help="Look for the smallest change that makes it fit; print the changed job.")
@click.option(
    "--keep",
    multiple=True,
    type=click.Choice(["method", "chips", "length"]),
    help="What --fit leaves alone: which weights are trained, the chips, the length of rows; repeatable.",
)
@click.option("--matrix", is_flag=True, help="A table of accelerators and batch sizes, by the formula.")
@click.option("--accelerator", multiple=True, metavar="TYPE", help="Of the matrix; repeatable.")
@click.option("--batch-size", multiple=True, type=click.IntRange(1), metavar="ROWS", help="Of the matrix; repeatable.")
@click.option("--price", type=click.FloatRange(0), metavar="X", help="Of a chip-hour, for the cost of the run.")
@click.option(
    "--prices", metavar="FILE", envvar="PTCTL_PRICES", help="YAML of prices per chip-hour by generation [PTCTL_PRICES]."
)
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FORM|FILE",
    help="text or json; of --matrix also csv, or a file (.txt .json .csv .png); of --fit a file for the job.",
)
@pass_app
def plan(
    app: App,
    filename: str,
    assignments: tuple[str, ...],
    quick: bool,
    depth: str,
    here: bool,
    fit: bool,
    keep: tuple[str, ...],
    matrix: bool,
    accelerator: tuple[str, ...],
    batch_size: tuple[int, ...],
    price: float | None,
    prices: str | None,
    target: str | None,
) -> int:
    """Say whether a job fits its chips, without any.

    The TPU compiler (libtpu) compiles the job's own programs here, on a CPU: memory per chip, a lower bound of the
    step's time, and what to change where it does not fit. Without libtpu, or with --quick, a formula answers. Exit
    code 0: fits, 1: does not, 2: the job is wrong. All but --quick needs the trainer's packages: pip install
    'posttrain[tpu-compiler]'.
    """
    from ptctl.jobs.file import check, read_changed
    from ptctl.planning import run
    from ptctl.planning.prices import read as read_prices

    for is_idle, message in (
        (fit + matrix + here > 1, "--fit, --matrix and --here exclude each other."),
        (keep and not fit, "--keep goes with --fit."),
        (
            (accelerator or batch_size) and not matrix,
            "--accelerator, --batch-size: only with --matrix.\nhint: --set accelerator.type=TYPE",
        ),
        (
            depth != "auto" and (quick or fit or matrix),
            "--depth is of the compiler: not with --quick, --fit or --matrix.",
        ),
        (
            price is not None and (fit or matrix),
            "--price is of one accelerator: not with --fit or --matrix.\nhint: --prices FILE",
        ),
    ):
        if is_idle:  # a flag that would do nothing
            raise click.UsageError(message)
    job = read_changed(filename, assignments)
    checked = check(job, filename)
    table = None if prices is None else read_prices(prices)
    if fit:
        return run.fit(app, job, checked, keep, quick, target)
    if matrix:
        return run.matrix(app, checked, accelerator, batch_size, table, target or "text")
    return run.verdict(app, checked, "formula" if quick else depth, price, table, target or "text", here=here)
