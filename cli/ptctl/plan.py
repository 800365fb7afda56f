"""`ptctl plan`: whether a job fits its chips, found by the trainer's own code in a child process."""

from __future__ import annotations

import click

from ptctl.app import App, pass_app
from ptctl.command import Verb
from ptctl.lazygroup import SETTINGS

_EXAMPLES = """
ptctl plan -f job.yaml
ptctl plan -f job.yaml --quick
ptctl plan -f job.yaml --set accelerator.type=v6e-32 --set training.lora.rank=16
ptctl plan -f job.yaml -o json | jq .peak
"""


@click.command("plan", cls=Verb, context_settings=SETTINGS, examples=_EXAMPLES)
@click.option("-f", "--filename", metavar="FILE", required=True, help="Job file, YAML or JSON; - is standard input.")
@click.option("--set", "assignments", multiple=True, metavar="PATH=VALUE", help="Change a field of spec; repeatable.")
@click.option("--quick", is_flag=True, help="The formula alone: no compiler, a second.")
@click.option(
    "--depth",
    type=click.Choice(["auto", "fast", "full"]),
    default="auto",
    help="How far to compile: fast, full (as training does), auto (full only where fast leaves a doubt).",
)
@click.option("--price", type=float, help="Of a chip-hour, for the cost of the run.")
@click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the output.")
@pass_app
def plan(
    app: App, filename: str, assignments: tuple[str, ...], quick: bool, depth: str, price: float | None, form: str
) -> int:
    """Say whether a job fits its chips, without any.

    The TPU compiler (libtpu) compiles the job's own train step here, on a CPU: memory per chip, a lower bound of the
    step's time, and what to change where it does not fit. Without libtpu, or with --quick, a formula answers. Exit
    code 0: fits, 1: does not, 2: the job is wrong. Needs the trainer's packages: pip install
    'posttrain[tpu-compiler]'.
    """
    from ptapi.failures import ExitCode
    from ptctl.errors import FAILED, INTERRUPTED, USAGE
    from ptctl.jobfile import check, read
    from ptctl.setpath import assign
    from ptctl.training import trainer_code

    job = read(filename)
    for assignment in assignments:
        assign(job, assignment)
    words = ["--output", form, "--depth", depth, *(["--quick"] if quick else [])]
    words += [] if price is None else ["--price", str(price)]
    code = trainer_code(check(job, filename), "preflight", *words)
    if code not in (0, INTERRUPTED, ExitCode.OUT_OF_MEMORY_HBM, ExitCode.CONFIG_ERROR):
        app.console.say(f"the trainer ended with exit code {code}")
    known = {0: 0, INTERRUPTED: INTERRUPTED, int(ExitCode.CONFIG_ERROR): USAGE}
    return known.get(code, FAILED)
