"""`ptctl local reset`: delete the embedded cluster."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb


@click.command("reset", cls=Verb, examples="ptctl local reset")
@pass_app
def reset(app: App) -> None:
    """Stop the cluster and delete everything in it.

    Run directories (`output.uri`) are elsewhere and are kept.
    """
    from ptctl import local_cluster

    existed = local_cluster.reset(app.console.say)
    app.console.say("the cluster is stopped and deleted" if existed else "there is no cluster on this machine")
