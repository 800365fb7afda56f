"""The table of commands. `ptctl --help` imports this module, so it imports click and nothing else heavy."""

import click

from ptctl.ui.command_line.lazy_group import Lazy, LazyGroup
from ptctl.ui.command_line.xpk_commands import ROOT

_JOBS = "Jobs"
_CLUSTERS = "Clusters"
_LAPTOP = "On this machine"
_OTHER = "Other"

COMMANDS = {
    "workload": Lazy("ptctl.commands.workload:workload", "Create, watch and delete jobs in a cluster.", _JOBS),
    "cluster": Lazy("ptctl.commands.cluster:cluster", "Create, inspect and delete clusters on GKE.", _CLUSTERS),
    "validate": Lazy("ptctl.commands.job_file.validate:validate", "Check a job file; nothing is sent anywhere.", _JOBS),
    "top": Lazy(
        "ptctl.commands.cluster.top:top", "Show who uses which chips and how well, who waits, and what is free.", _JOBS
    ),
    "ui": Lazy("ptctl.commands.ui:ui", "Show jobs, curves, samples and capacity in a browser.", _JOBS),
    "init": Lazy(
        "ptctl.commands.job_file.init:init",
        "Write a commented job file: SFT, LoRA, DPO, KTO, reward, GRPO, PPO, RAFT, SDPO, distillation, tools, images.",
        _JOBS,
    ),
    "import": Lazy(
        "ptctl.commands.job_file.import_job:import_job",
        "Turn XPK's, gcluster's, TRL's, Axolotl's or MaxText's jobs into posttrain's.",
        _JOBS,
    ),
    "plan": Lazy("ptctl.commands.plan:plan", "Check whether a job fits its chips, without using any.", _LAPTOP),
    "accelerators": Lazy(
        "ptctl.commands.accelerators:accelerators", "Show the accelerator types, and which of them hold a job.", _LAPTOP
    ),
    "data": Lazy("ptctl.commands.data:data", "Inspect a job's data before you pay for chips.", _LAPTOP),
    "train": Lazy("ptctl.commands.job_file.train:train", "Run a job's trainer here, without a cluster.", _LAPTOP),
    "model": Lazy(
        "ptctl.commands.model:model", "Copy a model of the hub into a bucket, before chips wait for it.", _LAPTOP
    ),
    "chat": Lazy("ptctl.commands.model.chat:chat", "Talk to a model in the terminal.", _LAPTOP),
    "eval": Lazy("ptctl.commands.model.eval:evaluate", "Measure models on held-out data, side by side.", _LAPTOP),
    "serve": Lazy(
        "ptctl.commands.model.serve:serve", "Answer OpenAI's API with a model, here or in a cluster.", _LAPTOP
    ),
    "image": Lazy("ptctl.commands.image:image", "Build the images that jobs run.", _CLUSTERS),
    "server": Lazy("ptctl.commands.server:server", "List and delete the servers of models in a cluster.", _CLUSTERS),
    "local": Lazy("ptctl.commands.local:local", "Run a small cluster on this machine, to try things out.", _LAPTOP),
    "demo": Lazy("ptctl.commands.local.demo:demo", "Teach a small model to add, and watch it learn.", _LAPTOP),
    "config": Lazy(
        "ptctl.commands.config:config",
        "Keep defaults of your own: context, namespace, accelerator, output, queue, project, location, zone.",
        _OTHER,
    ),
    "mcp": Lazy("ptctl.commands.program.mcp:mcp", "Offer ptctl's verbs to coding agents as tools.", _OTHER),
    "completion": Lazy(
        "ptctl.commands.program.completion:completion", "Print the completion script of a shell.", _OTHER
    ),
    "version": Lazy("ptctl.commands.program.version:version", "Print the version.", _OTHER),
}

_EXAMPLES = """
ptctl demo                                  # everything, on this machine, in minutes
ptctl workload create -f job.yaml           # submit a job
ptctl workload list                         # running jobs, their progress and metrics
ptctl workload logs llama-gsm8k -f          # follow a job's output
ptctl workload wait llama-gsm8k --timeout 2h
"""


def _version(ctx: click.Context, _: click.Parameter, is_requested: bool) -> None:
    if is_requested and not ctx.resilient_parsing:
        command = root.get_command(ctx, "version")
        assert command is not None
        ctx.invoke(command)
        ctx.exit()


@click.group(cls=LazyGroup, table=COMMANDS, moved=ROOT, examples=_EXAMPLES)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Same as `ptctl version`."
)
def root() -> None:
    """Post-train open models on TPUs: one job, one Kubernetes object.

    Exit codes: 0 ok, 1 the job or the call failed, 2 invalid command line or job, 3 not found, 4 not authorised,
    124 timed out, 130 interrupted.

    Commands of XPK and gcluster (storage attach, job submit) are answered with what to type here.
    """
