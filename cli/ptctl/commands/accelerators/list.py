"""`ptctl accelerators list`: the types by generation, or the smallest that hold a job."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import assignments, job_file, output

_EXAMPLES = """
ptctl accelerators list
ptctl accelerators list --generation v6e -o wide
ptctl accelerators list -o json | jq '.[] | select(.chips == 64) | .type'
ptctl accelerators list --fits -f job.yaml
ptctl accelerators list --fits -f job.yaml --set training.lora.rank=16 -o name
"""


@click.command("list", cls=Verb, examples=_EXAMPLES)
@click.option("--generation", metavar="NAME", help="Only this one: v4, v5p, v5e, v6e, tpu7x; aliases too.")
@click.option("--fits", is_flag=True, help="Only the smallest slice of each generation that holds the job of -f.")
@job_file(required=False)
@assignments
@output("json", "yaml", "name", "wide")
@pass_app
def list_accelerators(
    app: App,
    generation: str | None,
    fits: bool,
    filename: str | None,
    assignments: tuple[str, ...],
    output: str | None,
) -> int:
    """List the types, or the smallest for a job.

    The number in a type counts TensorCores for v4, v5p and tpu7x (two per chip), chips for v5e and v6e. With --fits
    memory is estimated by the formula of `ptctl plan --quick`, without JAX; exit code 1 if no type holds the job.
    """
    from ptctl.planning import accelerator_list

    if fits != (filename is not None) or (assignments and not fits):
        raise click.UsageError("--fits needs the job, and only --fits uses it.\nhint: --fits -f job.yaml")
    if filename is None:
        accelerator_list.show_types(app.console, generation, output)
        return 0
    return accelerator_list.show_fitting(app, filename, assignments, generation, output)
