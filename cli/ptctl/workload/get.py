"""`ptctl workload get`: jobs by name; `-o yaml` is what a script or a person keeps."""

from __future__ import annotations

import click

from ptctl.app import App, Target, pass_app
from ptctl.command import Verb
from ptctl.foreign import NAMED
from ptctl.lazygroup import SETTINGS
from ptctl.options import all_namespaces, complete_names, output, selector, to_cluster

_EXAMPLES = """
ptctl workload get llama-gsm8k
ptctl workload get llama-gsm8k -o yaml
ptctl workload get llama-gsm8k -w
ptctl workload get -o name
"""


@click.command("get", cls=Verb, context_settings=SETTINGS, examples=_EXAMPLES, foreign=NAMED)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_names)
@click.option("-w", "--watch", is_flag=True, help="Go on and print every change.")
@output("wide", "json", "yaml", "name")
@selector
@all_namespaces
@to_cluster
@pass_app
def get(
    app: App, target: Target, names: tuple[str, ...], watch: bool, output: str | None, selector: str | None
) -> None:
    """Show one or several jobs, also as YAML or JSON. Without a name: all."""
    from ptctl.jobs import Filter
    from ptctl.listing import print_jobs, print_named, watch_jobs

    if names and (selector or target.everywhere):
        raise click.UsageError("names exclude -l and -A.", click.get_current_context())
    if watch:
        watch_jobs(app, target, Filter(selector, names=names), output)
    elif names:
        print_named(app, target, names, output)
    else:
        print_jobs(app, target, Filter(selector), output)
