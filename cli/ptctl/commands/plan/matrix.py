"""`ptctl plan matrix`: compare accelerators and batch sizes for a job."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import assignments, job_file, prices_file

_EXAMPLES = """
ptctl plan matrix -f job.yaml --prices prices.yaml
ptctl plan matrix -f job.yaml --accelerator v6e-16 --accelerator v5p-16 --batch-size 64 -o matrix.png
"""


@click.command("matrix", cls=Verb, examples=_EXAMPLES)
@job_file()
@assignments
@click.option("--accelerator", multiple=True, metavar="TYPE", help="Accelerator of a row; repeatable.")
@click.option(
    "--batch-size", multiple=True, type=click.IntRange(1), metavar="ROWS", help="Batch size of a row; repeatable."
)
@prices_file
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FORMAT|FILE",
    default="text",
    help="text, json, csv, or a file (.txt .json .csv .png).",
)
@pass_app
def matrix(
    app: App,
    filename: str,
    assignments: tuple[str, ...],
    accelerator: tuple[str, ...],
    batch_size: tuple[int, ...],
    prices: str | None,
    target: str,
) -> int:
    """Print which accelerators and batch sizes fit, by the formula.

    Default: the slices that hold the job, with batch sizes around its own. Memory comes from the formula, times are
    lower bounds.
    """
    from ptctl.jobs.definition.file import check, read_with_changes
    from ptctl.planning import preflight
    from ptctl.planning.prices import read as read_prices

    job = check(read_with_changes(filename, assignments), filename)
    return preflight.matrix(app, job, accelerator, batch_size, read_prices(prices) if prices else None, target)
