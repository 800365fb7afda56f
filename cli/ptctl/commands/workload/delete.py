"""`ptctl workload delete`: one job by its name, or with --all those that -l and the filters choose."""

from __future__ import annotations

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command import Verb
from ptctl.ui.lazy_group import SETTINGS
from ptctl.ui.options import Duration, complete_names, pattern_filters, selector, to_cluster
from ptctl.ui.xpk_flags import DELETE

_EXAMPLES = """
ptctl workload delete llama-gsm8k
ptctl workload delete llama-gsm8k --wait
ptctl workload delete --all --filter-by-status FINISHED
ptctl workload delete --all -l team=search
"""


@click.command("delete", cls=Verb, context_settings=SETTINGS, examples=_EXAMPLES, foreign=DELETE)
@click.argument("names", nargs=-1, metavar="[NAME]", shell_complete=complete_names)
@click.option("--all", "everything", is_flag=True, help="Every job of the namespace that the filters match.")
@selector
@pattern_filters
@click.option("--wait", is_flag=True, help="Return when the job and its pods are gone.")
@click.option("--timeout", type=Duration(), default=600, show_default="10m", help="How long --wait waits.")
@to_cluster
@pass_app
def delete(
    app: App,
    target: Target,
    names: tuple[str, ...],
    everything: bool,
    selector: str | None,
    filter_by_status: str | None,
    filter_by_job: str | None,
    wait: bool,
    timeout: float,
) -> None:
    """Delete jobs; their run directories stay.

    One job by its name; more than one only with --all.
    """
    from ptctl.jobs.deletion import delete_jobs
    from ptctl.jobs.lookup import Filter

    ctx = click.get_current_context()
    has_filter = bool(selector or filter_by_status or filter_by_job)
    if len(names) > 1:
        raise click.UsageError("one NAME at a time; --all with -l or --filter-by-job deletes several", ctx)
    if bool(names) == everything:
        raise click.UsageError("give either one NAME or --all", ctx)
    if names and has_filter:
        raise click.UsageError("-l and the filters go with --all, not with a NAME", ctx)
    delete_jobs(app, target, Filter(selector, filter_by_job, filter_by_status, names), timeout if wait else None)
