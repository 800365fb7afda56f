"""`ptctl cluster queue`: the jobs that wait."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, output

_EXAMPLES = """
ptctl cluster queue
ptctl cluster queue -o json
"""


@click.command("queue", cls=Verb, examples=_EXAMPLES)
@output("json")
@cluster_options
@pass_app
def queue(app: App, target: Target, output: str | None) -> None:
    """Show which jobs wait, and for what.

    Of all namespaces, or of -n: the longest wait first. `ptctl cluster doctor JOB` explains one of them.
    """
    from ptctl.cluster.actions.usage import queue as show

    show(app, target, output)
