"""`ptctl workload`: the verbs on jobs, one file each."""

import click

from ptctl.ui.command_line.lazy_group import Lazy, LazyGroup
from ptctl.ui.command_line.xpk_commands import WORKLOAD

_SUBMIT = "Submit"
_INSPECT = "Inspect"
_CHANGE = "Change"

COMMANDS = {
    "create": Lazy(f"{__name__}.submit.create:create", "Submit a job, from flags or from a file.", _SUBMIT),
    "render": Lazy(f"{__name__}.submit.render:render", "Print every manifest that the operator would create.", _SUBMIT),
    "clone": Lazy(f"{__name__}.submit.clone:clone", "Submit a job again under another name, with changes.", _SUBMIT),
    "retry": Lazy(f"{__name__}.submit.retry:retry", "Submit a failed job again, from its newest checkpoint.", _SUBMIT),
    "list": Lazy(f"{__name__}.inspect.list:list_jobs", "List jobs.", _INSPECT),
    "get": Lazy(f"{__name__}.inspect.get:get", "Show one or several jobs, also as YAML or JSON.", _INSPECT),
    "describe": Lazy(f"{__name__}.inspect.describe:describe", "Show everything about a job on one page.", _INSPECT),
    "logs": Lazy(f"{__name__}.run.logs:logs", "Print the trainer's logs, all ranks merged.", _INSPECT),
    "events": Lazy(f"{__name__}.inspect.events:events", "Print what happened to a job, oldest first.", _INSPECT),
    "timeline": Lazy(f"{__name__}.inspect.timeline:timeline", "Print what a job did when, and for how long.", _INSPECT),
    "diff": Lazy(f"{__name__}.inspect.diff:diff", "Compare two jobs: spec, lineage and results.", _INSPECT),
    "metrics": Lazy(f"{__name__}.run.metrics:metrics", "Print a run's metrics, as a table or a curve.", _INSPECT),
    "samples": Lazy(f"{__name__}.run.samples:samples", "Print prompts, completions and rewards of a step.", _INSPECT),
    "tensorboard": Lazy(f"{__name__}.run.tensorboard:tensorboard", "Open TensorBoard on a run.", _INSPECT),
    "export": Lazy(f"{__name__}.run.export:export", "Copy a run's result to DEST.", _INSPECT),
    "connect": Lazy(f"{__name__}.run.connect:connect", "Connect to the chips of a headless Pathways job.", _INSPECT),
    "exec": Lazy(f"{__name__}.run.exec:execute", "Run a command in a job's container.", _INSPECT),
    "wait": Lazy(
        f"{__name__}.change.wait:wait", "Wait until a job is complete, running, suspended or deleted.", _CHANGE
    ),
    "suspend": Lazy(
        f"{__name__}.change.suspend:suspend", "Save a checkpoint, stop the pods and release the chips.", _CHANGE
    ),
    "resume": Lazy(f"{__name__}.change.resume:resume", "Continue a suspended job from its checkpoint.", _CHANGE),
    "delete": Lazy(f"{__name__}.change.delete:delete", "Delete jobs and keep their run directories.", _CHANGE),
}

_EXAMPLES = """
ptctl workload create -f job.yaml
ptctl workload list -A
ptctl workload describe llama-gsm8k
ptctl workload logs llama-gsm8k -f
"""


@click.group("workload", cls=LazyGroup, table=COMMANDS, moved=WORKLOAD, examples=_EXAMPLES)
def workload() -> None:
    """Create, watch and delete jobs in a cluster."""
