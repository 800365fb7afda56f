"""`ptctl workload delete`: one job by name, or with --all those that -l and the filters select."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import Duration, cluster_options, complete_names, pattern_filters, selector
from ptctl.ui.command_line.xpk_flags import DELETE

_EXAMPLES = """
ptctl workload delete llama-gsm8k
ptctl workload delete llama-gsm8k --wait
ptctl workload delete --all --filter-by-status FINISHED
ptctl workload delete --all -l team=search
"""


@click.command("delete", cls=Verb, examples=_EXAMPLES, replacements=DELETE)
@click.argument("names", nargs=-1, metavar="[NAME]", shell_complete=complete_names)
@click.option("--all", "delete_all", is_flag=True, help="Delete every job in the namespace that matches the filters.")
@selector
@pattern_filters
@click.option("--wait", is_flag=True, help="Return when the job and its pods are deleted.")
@click.option("--timeout", type=Duration(), default=600, show_default="10m", help="Longest wait with --wait.")
@cluster_options
@pass_app
def delete(
    app: App,
    target: Target,
    names: tuple[str, ...],
    delete_all: bool,
    selector: str | None,
    filter_by_status: str | None,
    filter_by_job: str | None,
    wait: bool,
    timeout: float,
) -> None:
    """Delete jobs and keep their run directories.

    Deletes one job by name; more than one only with --all.
    """
    from ptctl.jobs.deletion import delete_jobs
    from ptctl.jobs.lookup import Filter

    ctx = click.get_current_context()
    has_filter = bool(selector or filter_by_status or filter_by_job)
    if len(names) > 1:
        raise click.UsageError("pass one NAME; to delete several jobs use --all with -l or --filter-by-job", ctx)
    if bool(names) == delete_all:
        raise click.UsageError("pass either one NAME or --all", ctx)
    if names and has_filter:
        raise click.UsageError("-l and the filters work with --all, not with a NAME", ctx)
    delete_jobs(app, target, Filter(selector, filter_by_job, filter_by_status, names), timeout if wait else None)
