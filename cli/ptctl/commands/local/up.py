"""`ptctl local up`: start the embedded cluster."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb

_EXAMPLES = """
ptctl local up
eval "$(ptctl local env)" && kubectl get nodes
"""


@click.command("up", cls=Verb, examples=_EXAMPLES)
@pass_app
def up(app: App) -> None:
    """Start the cluster with the jobs that it had. Does nothing if it is already up."""
    from ptctl import local_cluster
    from ptctl.ui import interrupts

    with interrupts.handled(interrupts.raise_once):  # an interrupted start stops what it has started
        info = local_cluster.up(app.console.say)
    app.console.say("the cluster is up" if info.started else "the cluster is already up")
    app.console.say(
        f"kubeconfig: {info.kubeconfig}\nto use it:  {local_cluster.ENV_COMMAND}\nto stop it: ptctl local down"
    )
