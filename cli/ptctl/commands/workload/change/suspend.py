"""`ptctl workload suspend`: release the chips and keep the run."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, complete_names
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload suspend llama-gsm8k
ptctl workload wait llama-gsm8k --for suspended      # until the checkpoint is saved and the pods are gone
"""


@click.command("suspend", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@click.argument("name", shell_complete=complete_names)
@cluster_options
@pass_app
def suspend(app: App, target: Target, name: str) -> None:
    """Save a checkpoint, stop the pods and release the chips."""
    from ptctl.jobs.suspension import set_suspend

    set_suspend(app, target, name, suspend=True)
