"""`ptctl workload samples`: the model's completions and their rewards."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, job_or_directory
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload samples llama-gsm8k                 # the newest step's samples
ptctl workload samples llama-gsm8k -f --last 1     # and those of every later step
ptctl workload samples llama-gsm8k --step 10 --last 2
ptctl workload samples runs/llama-gsm8k            # of a run of `ptctl train`
ptctl workload samples llama-gsm8k -o json | jq .reward
"""


@click.command("samples", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@job_or_directory
@click.option("-f", "--follow", is_flag=True, help="Print every new step until the job ends.")
@click.option("--step", type=click.IntRange(0), metavar="N", help="Step to print; default: the newest.")
@click.option("--last", type=click.IntRange(1), default=4, show_default=True, metavar="N", help="Samples per step.")
@click.option("-o", "--output", "form", type=click.Choice(("json",)), help="Print every sample, one object per line.")
@cluster_options
@pass_app
def samples(app: App, target: Target, name: str, follow: bool, step: int | None, last: int, form: str | None) -> None:
    """Print prompts, completions and rewards of a step.

    Reads the run directory; on a PersistentVolumeClaim, by a short-lived pod that mounts it.
    """
    from ptctl.runs import sample_view

    if follow and step is not None:
        raise click.UsageError("-f follows new steps; pass either -f or --step")
    options = sample_view.SampleOptions(last, as_json=form == "json")
    if follow:
        sample_view.follow(app, target, name, options)
    else:
        sample_view.show(app, target, name, step, options)
