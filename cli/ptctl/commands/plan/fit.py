"""`ptctl plan fit`: find the smallest change that makes a job fit its chips."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import assignments, job_file

_EXAMPLES = """
ptctl plan fit -f job.yaml -o fitting.yaml
ptctl plan fit -f job.yaml --keep method --keep length
ptctl plan fit -f job.yaml --quick | ptctl workload create -f -
"""


@click.command("fit", cls=Verb, examples=_EXAMPLES)
@job_file()
@assignments
@click.option("--quick", is_flag=True, help="Use only the formula: no compiler, no JAX.")
@click.option(
    "--keep",
    multiple=True,
    type=click.Choice(["method", "chips", "length"]),
    help="What must not change: the trained weights, the chips or the row length; repeatable.",
)
@click.option("-o", "--output", "target", metavar="FILE", help="File for the changed job; default: standard output.")
@pass_app
def fit(
    app: App, filename: str, assignments: tuple[str, ...], quick: bool, keep: tuple[str, ...], target: str | None
) -> int:
    """Find the smallest change that makes a job fit, and print that job.

    Explains the changes on stderr. Exit code 0: the job fits, 1: nothing that was tried fits, 2: the job is invalid.
    """
    from ptctl.jobs.definition.file import check, read_with_changes
    from ptctl.planning import preflight

    job = read_with_changes(filename, assignments)
    return preflight.fit(app, job, check(job, filename), keep, quick, target)
