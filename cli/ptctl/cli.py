"""The table of commands. Importing this module is what `ptctl --help` costs, so it imports click and nothing else."""

from __future__ import annotations

import click

from ptctl.ui.lazy_group import SETTINGS, Lazy, LazyGroup

_JOBS = "Jobs"
_LAPTOP = "On this machine"
_OTHER = "Other"

COMMANDS = {
    "workload": Lazy("ptctl.commands.workload:workload", "Create, watch and end jobs in a cluster.", _JOBS),
    "validate": Lazy("ptctl.commands.validate:validate", "Check a job file; nothing is sent anywhere.", _JOBS),
    "plan": Lazy("ptctl.commands.plan:plan", "Say whether a job fits its chips, without any.", _LAPTOP),
    "data": Lazy("ptctl.commands.data:data", "Look at a job's data before chips are bought for it.", _LAPTOP),
    "train": Lazy("ptctl.commands.train:train", "Run a job's trainer here, without a cluster.", _LAPTOP),
    "local": Lazy("ptctl.commands.local:local", "A small cluster on this machine, for trying things.", _LAPTOP),
    "demo": Lazy("ptctl.commands.demo:demo", "Teach a small model to add, and watch it learn.", _LAPTOP),
    "completion": Lazy("ptctl.commands.completion:completion", "Print the completion script of a shell.", _OTHER),
    "version": Lazy("ptctl.commands.version:version", "Print the version.", _OTHER),
}

MOVED = {
    "cluster": "clusters are made by gcloud or Terraform; `ptctl local up` makes one on this machine",
    "storage": "write `volumes` in the job file, and apply it with `ptctl workload create -f`",
    "inspector": "`ptctl workload describe NAME` shows conditions, failures, capacity attempts and events",
    "info": "`kubectl get clusterqueues,localqueues -A` shows Kueue's quota",
    "config": "the cluster and namespace come from kubeconfig: `kubectl config set-context --current --namespace NS`",
    "job": "`ptctl workload` has the verbs on jobs",
    "jobs": "`ptctl workload list`",
    "run": "`ptctl workload create`, or `ptctl train -f job.yaml` without a cluster",
    "logs": "`ptctl workload logs NAME`",
    "get": "`ptctl workload get`",
    "apply": "`ptctl workload create -f job.yaml`",
    "up": "`ptctl local up`",
    "down": "`ptctl local down`",
    "help": "`ptctl --help`, `ptctl workload create --help`",
    "doctor": "`ptctl workload describe NAME`, and `ptctl local status` for the cluster on this machine",
}
"""Words that XPK, gcluster and kubectl have at this place."""

_EXAMPLES = """
ptctl demo                                  # the whole way, on this machine, in minutes
ptctl workload create -f job.yaml           # submit a job
ptctl workload list                         # what runs, how far, how well
ptctl workload logs llama-gsm8k -f          # follow a job's output
ptctl workload wait llama-gsm8k --timeout 2h
"""


def _version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        command = root.get_command(ctx, "version")
        assert command is not None
        ctx.invoke(command)
        ctx.exit()


@click.group(
    cls=LazyGroup, table=COMMANDS, moved=MOVED, context_settings=SETTINGS, examples=_EXAMPLES, no_args_is_help=True
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="As `ptctl version`."
)
def root() -> None:
    """Post-train open models on TPUs: one job, one Kubernetes object.

    Exit codes: 0 ok, 1 the job or the call failed, 2 wrong command line or job, 3 not found, 4 not authorised,
    124 timed out, 130 interrupted.
    """
