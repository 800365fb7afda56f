"""`ptctl plan`: check whether a job fits its chips, with the trainer's own code in a child process."""

import click
from click.core import ParameterSource

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.lazy_group import Lazy, LazyGroup
from ptctl.ui.command_line.options import assignments, job_file, prices_file

COMMANDS = {
    "fit": Lazy("ptctl.commands.plan.fit:fit", "Find the smallest change that makes a job fit, and print that job."),
    "matrix": Lazy(
        "ptctl.commands.plan.matrix:matrix", "Print which accelerators and batch sizes fit, by the formula."
    ),
}

_FIT = "`ptctl plan fit -f job.yaml`"
_MATRIX = "`ptctl plan matrix -f job.yaml`"
_REPLACEMENTS = {"--fit": _FIT, "--keep": _FIT, "--matrix": _MATRIX, "--accelerator": _MATRIX, "--batch-size": _MATRIX}

_EXAMPLES = """
ptctl plan -f job.yaml
ptctl plan -f job.yaml --quick
ptctl plan -f job.yaml --set accelerator.type=v6e-32 --set training.lora.rank=16
ptctl plan -f job.yaml -o json | jq .peak
ptctl plan -f job.yaml --here
ptctl plan fit -f job.yaml
ptctl plan matrix -f job.yaml
"""


@click.group(
    "plan", cls=LazyGroup, table=COMMANDS, examples=_EXAMPLES, replacements=_REPLACEMENTS, invoke_without_command=True
)
@job_file(required=False)
@assignments
@click.option("--quick", is_flag=True, help="Use only the formula: no compiler, no JAX, half a second.")
@click.option(
    "--depth",
    type=click.Choice(["auto", "fast", "full"]),
    default="auto",
    help="Compilation: fast, full (as training does), auto (full only where fast is not conclusive).",
)
@click.option("--here", is_flag=True, help="Check this machine's devices (GPUs) instead of the job's accelerator.")
@click.option("--price", type=click.FloatRange(0), metavar="X", help="Price of a chip-hour, for the cost of the run.")
@prices_file
@click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", help="Output format.")
@click.pass_context
@pass_app
def plan(
    app: App,
    ctx: click.Context,
    filename: str | None,
    assignments: tuple[str, ...],
    quick: bool,
    depth: str,
    here: bool,
    price: float | None,
    prices: str | None,
    form: str,
) -> int | None:
    """Check whether a job fits its chips, without using any.

    The TPU compiler (libtpu) compiles the job's own programs here, on a CPU: memory per chip, a lower bound of the
    step time, and what to change if the job does not fit. Without libtpu, or with --quick, a formula answers. Exit
    code 0: it fits, 1: it does not, 2: the job is invalid. All but --quick needs the trainer's packages: pip install
    'posttrain[tpu-compiler]'.
    """
    from ptctl.jobs.definition.defaults import put_defaults
    from ptctl.jobs.definition.file import check, read_with_changes
    from ptctl.planning import preflight
    from ptctl.planning.prices import read as read_prices

    if ctx.invoked_subcommand is not None:
        if any(ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in ctx.params):
            raise click.UsageError(
                f"flags come after the verb.\nhint: `ptctl plan {ctx.invoked_subcommand} -f job.yaml`"
            )
        return None
    if filename is None:
        raise click.MissingParameter(ctx=ctx, param_hint="'-f' / '--filename'", param_type="option")
    if quick and depth != "auto":  # a flag without effect is refused
        raise click.UsageError("--depth controls the compiler and does not work with --quick.")
    job = read_with_changes(filename, assignments)
    put_defaults(job, app.console)
    parsed = check(job, filename)
    table = None if prices is None else read_prices(prices)
    return preflight.verdict(app, parsed, "formula" if quick else depth, price, table, form, here=here)
