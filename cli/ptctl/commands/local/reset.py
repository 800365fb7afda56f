"""`ptctl local reset`."""

from __future__ import annotations

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command import Verb
from ptctl.ui.lazy_group import SETTINGS


@click.command("reset", cls=Verb, context_settings=SETTINGS, examples="ptctl local reset")
@pass_app
def reset(app: App) -> None:
    """Stop the cluster and forget everything in it.

    Run directories (`output.uri`) are outside it and stay.
    """
    from ptctl import local_cluster

    was_there = local_cluster.reset(app.console.say)
    app.console.say("the cluster is stopped and forgotten" if was_there else "there is no cluster on this machine")
