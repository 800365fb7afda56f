"""`ptctl workload clone`: a job once more, with changes."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import assignments, cluster_options, complete_names, dry_run
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload clone llama-gsm8k                      # as llama-gsm8k-2
ptctl workload clone llama-gsm8k --name hot --set rollout.temperature=1.2
ptctl workload clone llama-gsm8k --set spec.training.steps=200 --dry-run -o yaml
"""


@click.command("clone", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@click.argument("name", shell_complete=complete_names)
@click.option("--name", "new_name", metavar="NEW", help="Name of the new job; default: NAME-2, or the next free.")
@assignments
@dry_run
@click.option("-o", "form", type=click.Choice(("json", "yaml", "name")), help="Print the object.")
@cluster_options
@pass_app
def clone(
    app: App,
    target: Target,
    name: str,
    new_name: str | None,
    assignments: tuple[str, ...],
    dry_run: str,
    form: str | None,
) -> None:
    """Submit a job again under another name, with changes.

    In whatever phase the job is; it stays as it is. The new job has a run directory of its own and begins at step 0.
    """
    from ptctl.jobs.build.copying import clone as create_copy

    create_copy(app, target, name, new_name, assignments, form, dry_run)
