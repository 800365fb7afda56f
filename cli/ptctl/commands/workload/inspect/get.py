"""`ptctl workload get`: jobs by name; `-o yaml` for scripts, or to keep."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import all_namespaces, cluster_options, complete_names, output, selector
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload get llama-gsm8k
ptctl workload get llama-gsm8k -o yaml
ptctl workload get llama-gsm8k -w
ptctl workload get -o name
"""


@click.command("get", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_names)
@click.option("-w", "--watch", is_flag=True, help="Keep watching and print every change.")
@output("wide", "json", "yaml", "name")
@selector
@all_namespaces
@cluster_options
@pass_app
def get(
    app: App, target: Target, names: tuple[str, ...], watch: bool, output: str | None, selector: str | None
) -> None:
    """Show one or several jobs, also as YAML or JSON. Without a name, show all."""
    from ptctl.jobs.listing import print_jobs, print_named, watch_jobs
    from ptctl.jobs.lookup import Filter

    if names and (selector or target.everywhere):
        raise click.UsageError("NAME and -l or -A exclude each other.", click.get_current_context())
    if watch:
        watch_jobs(app, target, Filter(selector, names=names), output)
    elif names:
        print_named(app, target, names, output)
    else:
        print_jobs(app, target, Filter(selector), output)
