"""`ptctl workload retry`: a failed job again, from its newest checkpoint."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.copy_options import CopyOptions, copy_options
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload retry llama-gsm8k                      # as llama-gsm8k-2
ptctl workload retry llama-gsm8k --set training.microBatchSize=4
ptctl workload retry llama-gsm8k --dry-run -o yaml    # look first
"""


@click.command("retry", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@copy_options
@pass_app
def retry(app: App, target: Target, name: str, options: CopyOptions) -> None:
    """Submit a failed job again, from its newest checkpoint.

    Under another name, because a job that has ended never starts again; its run directory stays. Weights, optimizer and
    position in the data come from its newest good checkpoint; without one the new run begins at step 0.
    """
    from ptctl.jobs.definition.copying import retry as create_again

    create_again(app, target, name, options)
