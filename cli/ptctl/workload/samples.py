"""`ptctl workload samples`: what the model says, and what it was worth."""

from __future__ import annotations

import click

from ptctl.app import App, Target, pass_app
from ptctl.command import Verb
from ptctl.foreign import NAMED
from ptctl.lazygroup import SETTINGS
from ptctl.options import complete_names, to_cluster

_EXAMPLES = """
ptctl workload samples llama-gsm8k                 # of the newest step
ptctl workload samples llama-gsm8k --step 10 --last 2
ptctl workload samples llama-gsm8k -o json | jq .reward
"""


@click.command("samples", cls=Verb, context_settings=SETTINGS, examples=_EXAMPLES, foreign=NAMED)
@click.argument("name", shell_complete=complete_names)
@click.option("--step", type=click.IntRange(0), metavar="N", help="Of this step; by default the newest.")
@click.option("--last", type=click.IntRange(1), default=4, show_default=True, metavar="N", help="How many.")
@click.option("-o", "--output", "form", type=click.Choice(("json",)), help="Every sample, an object a line.")
@to_cluster
@pass_app
def samples(app: App, target: Target, name: str, step: int | None, last: int, form: str | None) -> None:
    """Print prompts, completions and rewards of a step. Reads the run directory."""
    import json

    from ptctl import rundir
    from ptctl.console import printable
    from ptctl.jobs import fetch
    from ptctl.jobview import view
    from ptctl.measures import number

    job = view(fetch(app.connect(target), target, name))
    found_step, found = rundir.samples(rundir.local_path(job.run_uri, "samples"), step)
    if form == "json":
        app.console.data("\n".join(json.dumps(row) for row in found))
        return
    for row in found[-last:]:
        numbers = "   ".join(f"{key} {number(row[key])}" for key in ("reward", "advantage") if number(row.get(key)))
        app.console.data(app.console.paint(f"step {found_step}   {numbers}", "bold"))
        app.console.data(printable(str(row.get("prompt", ""))))
        app.console.data(app.console.paint(printable(str(row.get("completion", ""))), "cyan") + "\n")
