"""`ptctl data check`: show a job's data as the model sees it, with the trainer's own code in a child process."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import assignments, job_file

_EXAMPLES = """
ptctl data check -f job.yaml
ptctl data check -f job.yaml --part eval --examples 1
ptctl data check -f job.yaml -o json | jq '.data[].bad[]'
ptctl data check -f job.yaml --set data.train.uri=file:///data/new.parquet
"""


@click.command("check", cls=Verb, examples=_EXAMPLES)
@job_file()
@assignments
@click.option("--part", type=click.Choice(["train", "eval"]), help="Show only data.train or data.eval.")
@click.option(
    "--examples", "count", type=click.IntRange(min=0), default=3, help="Rows to show with their loss mask (3)."
)
@click.option("--no-images", is_flag=True, help="Show no thumbnails on a terminal that can.")
@click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", help="Output format.")
@pass_app
def check(
    app: App, filename: str, assignments: tuple[str, ...], part: str | None, count: int, no_images: bool, form: str
) -> int:
    """Show a job's data as the model will see it.

    Shows the files, their format, the tokens per row, what is cut, dropped or unreadable, and examples in which colour
    (or brackets) marks the trained tokens, with thumbnails of images on a terminal with 24-bit colour. Nothing is
    trained; only tokenizer and data are fetched. Exit code 1 if a run would fail on this data. Needs the trainer's
    packages: pip install 'posttrain[trainer]'.
    """
    from ptctl.jobs.definition.file import check as checked
    from ptctl.jobs.definition.file import read_with_changes
    from ptctl.trainer_process import run_trainer

    job = read_with_changes(filename, assignments)
    only = [*([] if part is None else ["--part", part]), *["--no-images"] * no_images]
    return run_trainer(app, checked(job, filename), "data", "--examples", str(count), "--output", form, *only)
