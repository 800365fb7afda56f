"""`ptctl workload resume`: the opposite of suspend."""

from __future__ import annotations

import click

from ptctl.app import App, Target, pass_app
from ptctl.command import Verb
from ptctl.foreign import NAMED
from ptctl.lazygroup import SETTINGS
from ptctl.options import complete_names, to_cluster

_EXAMPLES = """
ptctl workload resume llama-gsm8k
ptctl workload wait llama-gsm8k --for running
"""


@click.command("resume", cls=Verb, context_settings=SETTINGS, examples=_EXAMPLES, foreign=NAMED)
@click.argument("name", shell_complete=complete_names)
@to_cluster
@pass_app
def resume(app: App, target: Target, name: str) -> None:
    """Continue a suspended job from its checkpoint."""
    from ptctl.suspension import set_suspend

    set_suspend(app, target, name, suspend=False)
