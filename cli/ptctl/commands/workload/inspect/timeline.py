"""`ptctl workload timeline`: what a job did when, and for how long."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, complete_names, output
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload timeline llama-gsm8k
ptctl workload timeline llama-gsm8k --svg timeline.svg
ptctl workload timeline llama-gsm8k -o json | jq '.items[] | select(.kind == "restart")'
"""


@click.command("timeline", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@click.argument("name", shell_complete=complete_names)
@click.option("--svg", metavar="FILE", type=click.Path(dir_okay=False), help="Also draw it into this file.")
@output("json")
@cluster_options
@pass_app
def timeline(app: App, target: Target, name: str, svg: str | None, output: str | None) -> None:
    """Print what a job did when, and for how long.

    Attempts at capacity, phases, restarts with their causes, and the end, from the job's status and its events.
    """
    from ptctl.runs.history.job_timeline import print_timeline

    print_timeline(app, target, name, svg, output)
