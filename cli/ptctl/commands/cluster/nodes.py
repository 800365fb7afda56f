"""`ptctl cluster nodes`: which jobs use which chips."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import context_options, output

_EXAMPLES = """
ptctl cluster nodes
ptctl cluster nodes -o json
"""


@click.command("nodes", cls=Verb, examples=_EXAMPLES)
@output("json")
@context_options
@pass_app
def nodes(app: App, target: Target, output: str | None) -> None:
    """Show the node pools with chips, and who uses them.

    Chips are those that pods hold, whether they compute or not.
    """
    from ptctl.cluster.actions.usage import nodes as show

    show(app, target, output)
