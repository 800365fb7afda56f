"""`ptctl validate`: check a job file as the API would, without a cluster."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import job_file

_EXAMPLES = """
ptctl validate -f job.yaml
ptctl workload get llama-gsm8k -o yaml | ptctl validate -f -
"""


@click.command("validate", cls=Verb, examples=_EXAMPLES)
@job_file()
@pass_app
def validate(app: App, filename: str) -> None:
    """Check a job file; nothing is sent anywhere.

    Prints every finding with its field, the value and what is accepted. Exit code 2 if there is any.
    """
    from ptctl.jobs.definition.file import check, read
    from ptctl.jobs.summary import summary

    job = check(read(filename), filename)
    app.console.data(f"{filename}: job {job.metadata.name!r} is valid: {summary(job)}")
