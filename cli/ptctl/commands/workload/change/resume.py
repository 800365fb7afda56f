"""`ptctl workload resume`: resume a suspended job."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, complete_names
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload resume llama-gsm8k
ptctl workload wait llama-gsm8k --for running
"""


@click.command("resume", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@click.argument("name", shell_complete=complete_names)
@cluster_options
@pass_app
def resume(app: App, target: Target, name: str) -> None:
    """Continue a suspended job from its checkpoint."""
    from ptctl.jobs.suspension import set_suspend

    set_suspend(app, target, name, suspend=False)
