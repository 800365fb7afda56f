"""`ptctl train`: run the trainer as a child process on this machine, without a cluster."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import assignments, job_file

_EXAMPLES = """
ptctl train -f job.yaml
ptctl train -f job.yaml --set training.steps=3 --set output.uri=file:///tmp/runs
ptctl train -f job.yaml --set training.optimizer.learningRate=3e-6 --fresh     # keeps the old run as NAME.previous-1
"""


@click.command("train", cls=Verb, examples=_EXAMPLES)
@job_file()
@assignments
@click.option("--fresh", is_flag=True, help="Start over; the existing run is kept as NAME.previous-N.")
@pass_app
def train(app: App, filename: str, assignments: tuple[str, ...], fresh: bool) -> int:
    """Run a job's trainer here, without a cluster.

    An interrupted run resumes from its checkpoint. Edits that keep the meaning of the run (more steps, other
    intervals) take effect; for other edits rename the job, or start over with --fresh.

    Runs the same program as a pod (`python -m pttrainer run`) and prints its exit code if that is not 0. Needs the
    trainer's packages: pip install 'posttrain[trainer-cpu]'.
    """
    from ptctl.jobs.definition.file import check, read_with_changes
    from ptctl.runs import local_training

    job = read_with_changes(filename, assignments)
    return local_training.train(app, check(job, filename), is_fresh=fresh)
