"""`ptctl workload events`: what happened to a job, as Kubernetes recorded it."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, complete_names, output
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload events llama-gsm8k
ptctl workload events llama-gsm8k -w            # and every new one
ptctl workload events llama-gsm8k -o json | jq -r '.items[].message'
"""


@click.command("events", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@click.argument("name", shell_complete=complete_names)
@click.option("-w", "--watch", is_flag=True, help="Keep watching and print every new event.")
@output("json")
@cluster_options
@pass_app
def events(app: App, target: Target, name: str, watch: bool, output: str | None) -> None:
    """Print what happened to a job, oldest first.

    Events of the job, of its JobSet and of its pods. Kubernetes keeps them for an hour; `timeline` shows what the job's
    status keeps.
    """
    from ptctl.runs.history.event_table import print_events, watch_events

    show = watch_events if watch else print_events
    show(app, target, name, output)
