"""`ptctl workload metrics`: the trainer's metrics, step by step."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, job_or_directory
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload metrics llama-gsm8k                    # the newest steps
ptctl workload metrics llama-gsm8k --plot reward      # a curve in the terminal
ptctl workload metrics runs/llama-gsm8k               # a run of `ptctl train`
ptctl workload metrics llama-gsm8k -o json | jq -s 'map(.loss) | min'
"""


@click.command("metrics", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@job_or_directory
@click.option(
    "--last", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="Number of steps in the table."
)
@click.option("--plot", metavar="METRIC", help="Draw this metric over all steps.")
@click.option(
    "-o", "--output", "form", type=click.Choice(("wide", "json")), help="All metrics; every step as JSON lines."
)
@cluster_options
@pass_app
def metrics(app: App, target: Target, name: str, last: int, plot: str | None, form: str | None) -> None:
    """Print a run's metrics, as a table or a curve.

    Reads the run directory; on a PersistentVolumeClaim, by a short-lived pod that mounts it.
    """
    import json

    from ptctl.errors import MissingError
    from ptctl.jobs.view import view
    from ptctl.runs import metric_table
    from ptctl.runs.storage import claim, directory, local_run

    job = view(local_run.find(app, target, name))
    with claim.run_directory(app, target, job, "metrics.jsonl") as run:
        rows = directory.metrics(run)
    if not rows:
        raise MissingError(f"job {job.name!r} has no metrics yet (phase {job.phase})")
    if form == "json":
        app.console.data("\n".join(json.dumps(row) for row in rows))
    elif plot:
        app.console.data(metric_table.plot(rows, plot, app.console.width))
    else:
        app.console.data(metric_table.table(rows[-last:], app.console.width, wide=form == "wide"))
