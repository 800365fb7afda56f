"""`ptctl plan`: check whether a job fits its chips, with the trainer's own code in a child process."""

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
@click.option("--quick", is_flag=True, help="Use only the formula: no compiler, no JAX, half a second.")
@click.option(
    "--depth",
    type=click.Choice(["auto", "fast", "full"]),
    default="auto",
    help="Compilation: fast, full (as training does), auto (full only where fast is not conclusive).",
)
@click.option("--here", is_flag=True, help="Check this machine's devices (GPUs) instead of the job's accelerator.")
@click.option("--fit", is_flag=True, help="Find the smallest change that makes the job fit, and print the changed job.")
@click.option(
    "--keep",
    multiple=True,
    type=click.Choice(["method", "chips", "length"]),
    help="What --fit must not change: the trained weights, the chips or the row length; repeatable.",
)
@click.option("--matrix", is_flag=True, help="Print a table of accelerators and batch sizes, by the formula.")
@click.option("--accelerator", multiple=True, metavar="TYPE", help="Accelerator for --matrix; repeatable.")
@click.option(
    "--batch-size", multiple=True, type=click.IntRange(1), metavar="ROWS", help="Batch size for --matrix; repeatable."
)
@click.option("--price", type=click.FloatRange(0), metavar="X", help="Price of a chip-hour, for the cost of the run.")
@click.option(
    "--prices",
    metavar="FILE",
    envvar="PTCTL_PRICES",
    help="YAML file of chip-hour prices by generation [PTCTL_PRICES].",
)
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FORMAT|FILE",
    help="text or json; with --matrix also csv, or a file (.txt .json .csv .png); with --fit a file for the job.",
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
    """Check whether a job fits its chips, without using any.

    The TPU compiler (libtpu) compiles the job's own programs here, on a CPU: memory per chip, a lower bound of the
    step time, and what to change if the job does not fit. Without libtpu, or with --quick, a formula answers. Exit
    code 0: it fits, 1: it does not, 2: the job is invalid. All but --quick needs the trainer's packages: pip install
    'posttrain[tpu-compiler]'.
    """
    from ptctl.jobs.file import check, read_with_changes
    from ptctl.planning import run
    from ptctl.planning.prices import read as read_prices

    for is_conflict, message in (
        (fit + matrix + here > 1, "--fit, --matrix and --here exclude each other."),
        (keep and not fit, "--keep works only with --fit."),
        (
            (accelerator or batch_size) and not matrix,
            "--accelerator and --batch-size work only with --matrix.\nhint: --set accelerator.type=TYPE",
        ),
        (
            depth != "auto" and (quick or fit or matrix),
            "--depth controls the compiler and does not work with --quick, --fit or --matrix.",
        ),
        (
            price is not None and (fit or matrix),
            "--price is for one accelerator and does not work with --fit or --matrix.\nhint: --prices FILE",
        ),
    ):
        if is_conflict:  # a flag without effect is refused
            raise click.UsageError(message)
    job = read_with_changes(filename, assignments)
    parsed = check(job, filename)
    table = None if prices is None else read_prices(prices)
    if fit:
        return run.fit(app, job, parsed, keep, quick, target)
    if matrix:
        return run.matrix(app, parsed, accelerator, batch_size, table, target or "text")
    return run.verdict(app, parsed, "formula" if quick else depth, price, table, target or "text", here=here)
