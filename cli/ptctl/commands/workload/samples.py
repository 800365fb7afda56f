"""`ptctl workload samples`: what the model says, and what it was worth."""

from __future__ import annotations

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command import Verb
from ptctl.ui.lazy_group import SETTINGS
from ptctl.ui.options import complete_names, to_cluster
from ptctl.ui.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload samples llama-gsm8k                 # of the newest step
ptctl workload samples llama-gsm8k -f --last 1     # and of every step to come
ptctl workload samples llama-gsm8k --step 10 --last 2
ptctl workload samples llama-gsm8k -o json | jq .reward
"""


@click.command("samples", cls=Verb, context_settings=SETTINGS, examples=_EXAMPLES, foreign=NAMED)
@click.argument("name", shell_complete=complete_names)
@click.option("-f", "--follow", is_flag=True, help="Go on with every new step until the job ends.")
@click.option("--step", type=click.IntRange(0), metavar="N", help="Of this step; by default the newest.")
@click.option("--last", type=click.IntRange(1), default=4, show_default=True, metavar="N", help="How many of a step.")
@click.option("-o", "--output", "form", type=click.Choice(("json",)), help="Every sample, an object a line.")
@to_cluster
@pass_app
def samples(app: App, target: Target, name: str, follow: bool, step: int | None, last: int, form: str | None) -> None:
    """Print prompts, completions and rewards of a step. Reads the run directory."""
    from ptctl.runs import sample_view

    if follow and step is not None:
        raise click.UsageError("-f goes on with new steps; give it or --step")
    how = sample_view.How(last, as_json=form == "json")
    if follow:
        sample_view.follow(app, target, name, how)
    else:
        sample_view.show(app, target, name, step, how)
