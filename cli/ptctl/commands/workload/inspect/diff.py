"""`ptctl workload diff`: two jobs side by side, only what differs."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, complete_names, output
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload diff llama-gsm8k llama-gsm8k-2
ptctl workload diff runs/llama-gsm8k llama-gsm8k     # a run of `ptctl train` and a job
ptctl workload diff llama-gsm8k llama-gsm8k-2 -o json | jq '.spec'
"""


@click.command("diff", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@click.argument("first", metavar="NAME|DIRECTORY", shell_complete=complete_names)
@click.argument("second", metavar="NAME|DIRECTORY", shell_complete=complete_names)
@output("json")
@cluster_options
@pass_app
def diff(app: App, target: Target, first: str, second: str, output: str | None) -> None:
    """Compare two jobs: spec, lineage and results.

    Only what differs. The lineage (versions, digests of data and files) is read from the run directories.
    """
    from ptctl.runs.comparison import print_differences

    print_differences(app, target, first, second, output)
