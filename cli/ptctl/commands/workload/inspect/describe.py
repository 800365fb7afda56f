"""`ptctl workload describe`: everything about a job on one page."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, job_or_directory
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload describe llama-gsm8k
ptctl workload describe runs/llama-gsm8k     # a run of `ptctl train`
"""


@click.command("describe", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@job_or_directory
@cluster_options
@pass_app
def describe(app: App, target: Target, name: str) -> None:
    """Show everything about a job on one page.

    Conditions, progress, metrics, the newest failure, capacity attempts, pods, events. For scripts: `get -o json`.
    """
    from datetime import UTC, datetime

    from ptctl.jobs.view import view
    from ptctl.runs.description import describe_job
    from ptctl.runs.storage import local_run
    from ptctl.runs.storage.directory import newest_sample
    from ptkube.resources import EVENTS, PODS
    from ptoperator.kube import labels

    job = view(local_run.find(app, target, name))
    pods, events = [], []
    if not local_run.is_directory(name):
        kube = app.connect(target)
        pods = kube.list(PODS, job.namespace, labels=labels.selector(name)).items
        events = kube.list(EVENTS, job.namespace, fields=f"involvedObject.name={name}").items
    app.console.data(describe_job(job, pods, events, newest_sample(job.run_uri), datetime.now(UTC), app.console.width))
