"""`ptctl workload list`: one line a job."""

from __future__ import annotations

import click

from ptctl.app import App, Target, pass_app
from ptctl.command import Verb
from ptctl.foreign import LIST
from ptctl.lazygroup import SETTINGS
from ptctl.options import all_namespaces, output, pattern_filters, selector, to_cluster

_EXAMPLES = """
ptctl workload list
ptctl workload list -A -o wide
ptctl workload list -w                          # and every change
ptctl workload list --filter-by-status RUNNING --filter-by-job llama
ptctl workload list -l team=search -o json | jq -r '.items[].metadata.name'
"""


@click.command("list", cls=Verb, context_settings=SETTINGS, examples=_EXAMPLES, foreign=LIST)
@click.option("-w", "--watch", is_flag=True, help="Go on and print every change.")
@output("wide", "json", "yaml", "name")
@selector
@pattern_filters
@all_namespaces
@to_cluster
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

    The columns are those of `kubectl get ptj` and more; -o wide has all. A terminal that is too narrow shows fewer.
    """
    from ptctl.jobs import Filter
    from ptctl.listing import print_jobs, watch_jobs

    show = watch_jobs if watch else print_jobs
    show(app, target, Filter(selector, filter_by_job, filter_by_status), output)
