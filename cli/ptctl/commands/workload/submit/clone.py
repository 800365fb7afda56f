"""`ptctl workload clone`: a job once more, with changes."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.copy_options import CopyOptions, copy_options
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload clone llama-gsm8k                      # as llama-gsm8k-2
ptctl workload clone llama-gsm8k --name hot --set rollout.temperature=1.2
ptctl workload clone llama-gsm8k --set spec.training.steps=200 --dry-run -o yaml
"""


@click.command("clone", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@copy_options
@pass_app
def clone(app: App, target: Target, name: str, options: CopyOptions) -> None:
    """Submit a job again under another name, with changes.

    In whatever phase the job is; it stays as it is. The new job has a run directory of its own and begins at step 0.
    """
    from ptctl.jobs.definition.copying import clone as create_copy

    create_copy(app, target, name, options)
