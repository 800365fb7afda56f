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
ptctl train -f job.yaml --set training.optimizer.learningRate=3e-6 --fresh     # keeps the old run as NAME.previous-1
"""


@click.command("train", cls=Verb, context_settings=SETTINGS, examples=_EXAMPLES)
@job_file()
@assignments
@click.option("--fresh", is_flag=True, help="Start over; the run that is there is kept as NAME.previous-N.")
@pass_app
def train(app: App, filename: str, assignments: tuple[str, ...], fresh: bool) -> int:
    """Run a job's trainer here, without a cluster.

    A run that was interrupted goes on from its checkpoint. Of an edited job it takes what leaves its meaning alone
    (more steps, other intervals); for the rest give it another name, or start over with --fresh.

    The same program that a pod runs (`python -m pttrainer run`); its own exit code is told where it is not 0. Needs
    the trainer's packages: pip install 'posttrain[trainer-cpu]'.
    """
    from ptctl.jobs.file import check, read_changed
    from ptctl.trainer_process import run_trainer

    job = read_changed(filename, assignments)
    return run_trainer(app, check(job, filename), "run", *(["--fresh"] if fresh else []))
