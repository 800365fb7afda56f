"""`ptctl server delete`."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options

_EXAMPLES = """
ptctl server delete llama-gsm8k-serve
"""


@click.command("delete", cls=Verb, examples=_EXAMPLES)
@click.argument("name")
@cluster_options
@pass_app
def delete(app: App, target: Target, name: str) -> None:
    """Delete a server.

    Its Deployment, Service, autoscaler and route go; the weights stay.
    """
    from ptctl.runs.servers import applying

    applying.delete(app, target, name)
