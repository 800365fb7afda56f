"""`ptctl workload export`: a run's result, copied to where it is needed."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, job_or_directory
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload export llama-gsm8k models/llama-gsm8k          # into a directory here
ptctl workload export llama-gsm8k gs://my-bucket/models/v7    # from bucket to bucket it does not pass here
ptctl workload export llama-gsm8k hf://my-org/llama-gsm8k     # a private model repository, in one commit
ptctl workload export llama-gsm8k out --step 200 --adapters   # of a checkpoint, while the job runs
ptctl workload export runs/llama-gsm8k gs://my-bucket/models/v7 --overwrite
ptctl workload export llama-gsm8k gs://my-bucket/maxtext/v7 --layout maxtext   # an Orbax checkpoint for MaxText
"""


@click.command("export", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@job_or_directory
@click.argument("place", metavar="DEST")
@click.option("--step", type=click.IntRange(0), metavar="N", help="The weights of this checkpoint.")
@click.option("--merged", "form", flag_value="merged", help="All weights, adapters merged into them.")
@click.option("--adapters", "form", flag_value="adapters", help="The adapters alone, as PEFT loads them.")
@click.option(
    "--layout",
    type=click.Choice(("huggingface", "maxtext", "maxtext-unscanned")),
    default="huggingface",
    help="maxtext: all weights as MaxText's Orbax checkpoint, by its scan_layers (huggingface).",
)
@click.option("--overwrite", is_flag=True, help="Replace a model that is at DEST.")
@cluster_options
@pass_app
def export(
    app: App,
    target: Target,
    name: str,
    place: str,
    step: int | None,
    form: str | None,
    layout: str,
    overwrite: bool,
) -> None:
    """Copy a run's result to DEST.

    DEST: a directory, gs://BUCKET/PATH or hf://ORGANISATION/NAME (with HF_TOKEN or `hf auth login`). Every file is
    checked by its digest. A command that is repeated goes on where it was, and whatever else is at DEST stays as it is.
    What the run has not written, the trainer writes here, from its result or a checkpoint: pip install
    'posttrain[trainer-cpu]'.
    """
    from ptctl.runs.export.export import Choice
    from ptctl.runs.export.export import export as copy_result

    copy_result(app, target, name, place, Choice(step, form, layout), overwrite=overwrite)
