"""`ptctl workload list`: one line per job."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import all_namespaces, cluster_options, output, pattern_filters, selector
from ptctl.ui.command_line.xpk_flags import LIST

_EXAMPLES = """
ptctl workload list
ptctl workload list -A -o wide
ptctl workload list -w                          # and every change
ptctl workload list --filter-by-status RUNNING --filter-by-job llama
ptctl workload list -l team=search -o json | jq -r '.items[].metadata.name'
"""


@click.command("list", cls=Verb, examples=_EXAMPLES, replacements=LIST)
@click.option("-w", "--watch", is_flag=True, help="Keep watching and print every change.")
@output("wide", "json", "yaml", "name")
@selector
@pattern_filters
@all_namespaces
@cluster_options
@pass_app
def list_jobs(
    app: App,
    target: Target,
    watch: bool,
    output: str | None,
    selector: str | None,
    filter_by_status: str | None,
    filter_by_job: str | None,
) -> None:
    """List jobs.

    The columns are those of `kubectl get ptj` and more; -o wide has all. A narrow terminal shows fewer.
    """
    from ptctl.jobs.listing import print_jobs, watch_jobs
    from ptctl.jobs.lookup import Filter

    show = watch_jobs if watch else print_jobs
    show(app, target, Filter(selector, filter_by_job, filter_by_status), output)
