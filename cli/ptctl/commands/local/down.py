"""`ptctl local down`: stop the embedded cluster."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb


@click.command("down", cls=Verb, examples="ptctl local down")
@click.option("--now", is_flag=True, help="Give jobs two seconds instead of time to save a checkpoint.")
@pass_app
def down(app: App, now: bool) -> None:
    """Stop the cluster and keep its jobs.

    Running trainers get time to save a checkpoint; `ptctl local up` resumes their jobs.
    """
    from ptctl import local_cluster

    was_up = local_cluster.down(app.console.say, now=now)
    app.console.say("the cluster is stopped" if was_up else "the cluster was not up")
