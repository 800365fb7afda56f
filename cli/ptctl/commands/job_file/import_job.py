"""`ptctl import`: turn other tools' command lines and documents into jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import assignments, cluster_options

if TYPE_CHECKING:
    from ptctl.importers.draft import Draft

_EXAMPLES = """
# a script of XPK's commands, with a value for a variable that it takes from your shell
ptctl import run_rl.sh --var PROJECT=my-project > job.yaml

# one command line
echo 'xpk workload create --workload w --tpu-type v6e-16 …' | ptctl import -

# a command of MaxText, with what it does not say
ptctl import --command 'python3 -m maxtext.trainers.post_train.rl.train_rl model_name=llama3.1-8b …' \\
    --set metadata.name=llama-rl --set accelerator.type=v6e-16 --set image=gcr.io/my-project/maxtext

# TRL and Axolotl: what they leave unset is written into the job where the defaults differ
ptctl import --command 'accelerate launch --num_processes 8 trl/scripts/grpo.py --config grpo.yaml'
ptctl import axolotl.yaml --set accelerator.type=v6e-16 --set training.batchSize=64

# from the cluster
kubectl get jobset my-run -o yaml | ptctl import -

# create the jobs instead of printing them
ptctl import run_rl.sh --apply
"""


@click.command("import", cls=Verb, examples=_EXAMPLES)
@click.argument("filename", metavar="FILE|-", required=False)
@click.option("--command", metavar="COMMAND", help="A command line instead of a file: xpk …, trl …, a trainer's.")
@click.option("--var", "variables", multiple=True, metavar="NAME=VALUE", help="A variable of the script; repeatable.")
@assignments
@click.option("--allow-changes", "is_changed", is_flag=True, help="Take a job that trains something else.")
@click.option("--apply", "is_applied", is_flag=True, help="Create the jobs instead of printing them.")
@cluster_options
@pass_app
def import_job(
    app: App,
    /,
    target: Target,
    filename: str | None,
    command: str | None,
    variables: tuple[str, ...],
    assignments: tuple[str, ...],
    is_changed: bool,
    is_applied: bool,
) -> None:
    """Turn XPK's, gcluster's, TRL's, Axolotl's or MaxText's jobs into posttrain's.

    Reads command lines and shell scripts of them (nothing is run), YAML of Axolotl, PathwaysJobs, JobSets and
    TrainJobs. Prints a job for each, with a comment for everything that it does not import. Exit code 2 if something
    is left to fill in, or if something without a counterpart changes what is trained.
    """
    from ptctl.importers.draft_checks import finished, refuse_changes, refuse_missing, secret_commands
    from ptctl.importers.draft_text import document

    drafts = [finished(draft, assignments) for draft in _drafts(filename, command, variables, assignments)]
    for line in secret_commands(drafts):
        app.console.say(line)
    if not is_applied:
        app.console.data("\n---\n".join(document(draft) for draft in drafts))
    refuse_missing(drafts)
    if not is_changed:
        refuse_changes(drafts)
    if is_applied:
        _create(app, target, drafts)


def _drafts(
    filename: str | None, command: str | None, variables: tuple[str, ...], assignments: tuple[str, ...]
) -> list[Draft]:
    from ptctl.importers.source import draft_of_program, drafts, is_script
    from ptctl.jobs.definition.file import read_text
    from ptctl.jobs.definition.from_flags import variable

    if (filename is None) == (command is None):
        raise click.UsageError("accepted: one FILE (- is standard input), or --command", click.get_current_context())
    values = {pair["name"]: pair["value"] for pair in map(variable, variables)}
    if command is not None and not is_script(command):
        return [draft_of_program(command, assignments)]
    return drafts(read_text(filename) if filename else command or "", filename or "--command", values)


def _create(app: App, target: Target, drafts: list[Draft]) -> None:
    from ptctl.jobs.submission import submit

    for draft in drafts:
        submit(app, target, draft.filled(examples=False), None, "none", "--workload")
