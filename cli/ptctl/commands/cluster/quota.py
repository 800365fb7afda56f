"""`ptctl cluster quota`: Kueue's quotas."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import context_options, output

_EXAMPLES = """
ptctl cluster quota
ptctl cluster quota -o json
"""


@click.command("quota", cls=Verb, examples=_EXAMPLES)
@output("json")
@context_options
@pass_app
def quota(app: App, target: Target, output: str | None) -> None:
    """Show Kueue's quotas, and how much is in use.

    One line per ClusterQueue, flavor and resource; pending: jobs that wait in the queue.
    """
    from ptctl.cluster.actions.usage import quota as show

    show(app, target, output)
