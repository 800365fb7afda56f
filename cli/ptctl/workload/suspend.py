"""`ptctl workload suspend`: give the chips back and keep the run."""

from __future__ import annotations

import click

from ptctl.app import App, Target, pass_app
from ptctl.command import Verb
from ptctl.foreign import NAMED
from ptctl.lazygroup import SETTINGS
from ptctl.options import complete_names, to_cluster

_EXAMPLES = """
ptctl workload suspend llama-gsm8k
ptctl workload wait llama-gsm8k --for suspended      # until the checkpoint is saved and the pods are gone
"""


@click.command("suspend", cls=Verb, context_settings=SETTINGS, examples=_EXAMPLES, foreign=NAMED)
@click.argument("name", shell_complete=complete_names)
@to_cluster
@pass_app
def suspend(app: App, target: Target, name: str) -> None:
    """Save a checkpoint, stop the pods, hold no chips."""
    from ptctl.suspension import set_suspend

    set_suspend(app, target, name, suspend=True)
