"""`ptctl workload wait`: wait for a job, for scripts; the exit code is the result."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.choices import GOAL_PHASES
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import Duration, cluster_options, complete_names
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload wait llama-gsm8k --timeout 2h && echo trained
ptctl workload wait llama-gsm8k --for running --timeout 10m
ptctl workload wait llama-gsm8k --for deleted
"""


@click.command("wait", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@click.argument("name", shell_complete=complete_names)
@click.option(
    "--for",
    "goal",
    type=click.Choice(tuple(GOAL_PHASES), case_sensitive=False),
    default="complete",
    show_default=True,
    help="State to wait for.",
)
@click.option("--timeout", type=Duration(), default=None, help="Longest wait (90s, 15m, 2h30m); 0 checks once.")
@cluster_options
@pass_app
def wait(app: App, target: Target, name: str, goal: str, timeout: float | None) -> None:
    """Wait until a job is complete, running, suspended or deleted.

    Exit code 0 when it is, 1 when it no longer can be (the job failed), 124 when --timeout passed.
    """
    from ptctl.jobs.waiting import wait_for

    wait_for(app, target, name, goal, timeout)
