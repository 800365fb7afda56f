"""`ptctl top`: who uses which chips, and how well."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import Duration, all_namespaces, cluster_options, output, prices_file

_EXAMPLES = """
ptctl top
ptctl top -A -w                       # all namespaces, again every 5 seconds
ptctl top --prices prices.yaml        # with what an hour costs
ptctl top -A -o json | jq '.chips.free'
"""


@click.command("top", cls=Verb, examples=_EXAMPLES)
@click.option("-w", "--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option("--every", type=Duration(), default=5.0, metavar="TIME", help="With -w: this often (5s).")
@prices_file
@output("json")
@all_namespaces
@cluster_options
@pass_app
def top(app: App, target: Target, watch: bool, every: float, prices: str | None, output: str | None) -> None:
    """Show who uses which chips and how well, who waits, and what is free.

    HBM is the most that a job's first device has held, of what it has; goodput is the share of the time on its chips
    in which a job was training. How busy GPUs and their tensor cores are is what GKE's DCGM exporter says now. Chips
    are those that pods hold, whether they compute or not.
    """
    from ptctl.cluster.actions.top import top as show

    show(app, target, max(1.0, every) if watch else None, prices, output)
