"""`ptctl train`: the trainer as a child process, here, without a cluster."""

from __future__ import annotations

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command import Verb
from ptctl.ui.lazy_group import SETTINGS
from ptctl.ui.options import assignments, job_file

_EXAMPLES = """
ptctl train -f job.yaml
ptctl train -f job.yaml --set training.steps=3 --set output.uri=file:///tmp/runs
"""


@click.command("train", cls=Verb, context_settings=SETTINGS, examples=_EXAMPLES)
@job_file()
@assignments
@pass_app
def train(app: App, filename: str, assignments: tuple[str, ...]) -> int:
    """Run a job's trainer here, without a cluster.

    The same program that a pod runs (`python -m pttrainer run`); its own exit code is told where it is not 0. Needs
    the trainer's packages: pip install 'posttrain[trainer-cpu]'.
    """
    from ptctl.jobs.file import check, read_changed
    from ptctl.trainer_process import run_trainer

    job = read_changed(filename, assignments)
    return run_trainer(app, check(job, filename))
