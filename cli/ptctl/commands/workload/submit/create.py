"""`ptctl workload create`: submit a job from flags, from a file, or from a file changed by flags.

Order: file, then flags, then --set; then the API's own rules; then the cluster. --dry-run=client prints exactly what
would be sent.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.choices import ALGORITHMS, BUILTIN_REWARDS
from ptctl.ui.command_line.command import SectionOption, Verb
from ptctl.ui.command_line.options import assignments, cluster_options, dry_run, job_file
from ptctl.ui.command_line.xpk_flags import CREATE

if TYPE_CHECKING:
    from ptkube.resources import Manifest

_EXAMPLES = """
# from a file; - is standard input
ptctl workload create -f job.yaml

# with XPK's flags, and what post-training needs
ptctl workload create --workload llama-gsm8k --tpu-type v6e-16 --algorithm grpo \\
    --model gs://my-bucket/models/llama-3.1-8b-instruct --data gs://my-bucket/gsm8k/train.jsonl \\
    --reward gsm8k --steps 200 --output gs://my-bucket/runs

# a file with changes, under another name
ptctl workload create -f job.yaml --workload llama-gsm8k-2 --set training.optimizer.learningRate=2e-6

# look first: what would be sent, and what the server would store
ptctl workload create -f job.yaml --dry-run=client -o yaml
ptctl workload create -f job.yaml --dry-run=server -o yaml
"""


job, training, chips, pods = (
    partial(click.option, cls=SectionOption, heading=heading) for heading in ("Job", "Training", "Chips", "Pods")
)


@click.command("create", cls=Verb, examples=_EXAMPLES, replacements=CREATE)
@job_file(required=False)
@job("--workload", metavar="NAME", help="Name of the job.")
@job("--model", metavar="URI", help="hf://, gs://, file:// or a path; random://tiny to try things out.")
@job("--tokenizer", metavar="URI", help="Tokenizer, if it is not stored with the weights.")
@job("--algorithm", type=click.Choice(ALGORITHMS), metavar="NAME", help=f"{', '.join(ALGORITHMS)}.")
@job("--data", metavar="URI", help="Training data: gs://, hf://datasets/…, file:// or a path.")
@job("--eval-data", metavar="URI", help="Held-out data.")
@job("--reward", multiple=True, metavar="NAME|FILE.py[:FUNCTION]", help=f"{', '.join(BUILTIN_REWARDS)}; repeatable.")
@training("--steps", type=int, metavar="N", help="Optimizer steps; by default one pass over the data.")
@training("--batch-size", type=int, metavar="N", help="Sequences per step (grpo, ppo: prompts x samples of each).")
@training("--group-size", type=int, metavar="N", help="Samples per prompt, for grpo, ppo, raft and sdpo.")
@training("--sequence-length", type=int, metavar="N", help="Longest row in tokens.")
@training("--max-new-tokens", type=int, metavar="N", help="Longest completion in tokens.")
@training("--learning-rate", type=float, metavar="X", help="Peak learning rate.")
@job("--output", "output_uri", metavar="URI", help="Results go to URI/NAME: gs://, file:// or a path.")
@chips("--tpu-type", "--device-type", "tpu_type", metavar="TYPE", help="v5p-128, v6e-16, ...; cpu-1 on a laptop.")
@chips("--num-slices", type=int, metavar="N", help="Number of slices.")
@pods("--docker-image", metavar="IMAGE", help="Trainer image; by default the operator's.")
@pods("--docker-image-pull-secret", multiple=True, metavar="NAME", help="Secret to pull the image with.")
@pods("--command", metavar="COMMAND", help="Run this in the image instead of posttrain's trainer.")
@pods("--env", multiple=True, metavar="NAME=VALUE", help="Environment of the trainer; repeatable.")
@pods("--env-file", metavar="FILE", help="The same from a file, one per line.")
@chips("--queue", metavar="NAME", help="Kueue LocalQueue.")
@chips("--priority", metavar="CLASS", help="PriorityClass (XPK makes very-low ... very-high).")
@pods("--service-account", metavar="NAME", help="ServiceAccount of the pods.")
@chips("--on-demand", is_flag=True, help="Buy the chips on demand.")
@chips("--spot", is_flag=True, help="Use spot chips.")
@chips("--flex", is_flag=True, help="Use flex-start chips.")
@chips("--reservation", metavar="NAME", help="Use this reservation; tried before spot, flex, on-demand.")
@pods("--max-restarts", type=int, metavar="N", help="Restarts after failures of the job's own.")
@pods("--ttl-seconds-after-finished", type=int, metavar="N", help="Delete the job this long after its end.")
@pods("--termination-grace-period-seconds", type=int, metavar="N", help="Time to save a checkpoint.")
@chips("--headless", is_flag=True, help="Start only the Pathways servers.")
@chips("--elastic-slices", type=int, metavar="N", help="Slices that Pathways can run without.")
@chips("--server-image", metavar="IMAGE", help="Image of the Pathways server.")
@chips("--proxy-server-image", metavar="IMAGE", help="Image of the Pathways proxy.")
@click.option("--suspend", is_flag=True, help="Create it suspended; `ptctl workload resume` starts it.")
@assignments
@dry_run
@click.option("-o", "form", type=click.Choice(("json", "yaml", "name")), help="Print the object.")
@cluster_options
@pass_app
def create(app: App, /, target: Target, filename: str | None, dry_run: str, form: str | None, **flags: Any) -> None:
    """Submit a job, from flags or from a file.

    Flags override the file, and --set overrides flags. The job is validated before anything is sent.
    """
    from ptctl.jobs.definition.defaults import put_defaults
    from ptctl.jobs.definition.file import check
    from ptctl.jobs.submission import submit

    job = _job(app, filename, flags)
    put_defaults(job, app.console)
    check(job, filename or "the job")
    namespace = _namespace(job, target)
    if namespace:
        job = {**job, "metadata": {**job["metadata"], "namespace": namespace}}
    submit(app, target, job, form, dry_run, "--workload")


def _job(app: App, filename: str | None, flags: dict[str, Any]) -> Manifest:
    from ptctl.jobs.definition.file import read, without_server_fields
    from ptctl.jobs.definition.from_flags import apply_flags, empty_job

    ctx = click.get_current_context()
    has_flags = any(value not in (None, False, ()) for value in flags.values())
    if filename is None and not has_flags:
        raise click.UsageError("no job: pass -f FILE, or flags: --workload, --model, --data, ...", ctx)
    if filename is None and not flags["workload"]:
        raise click.UsageError("the job has no name: pass --workload NAME", ctx)
    if flags["output_uri"] in ("json", "yaml", "name", "wide"):
        raise click.UsageError(f"--output is where results go; to print the object use -o {flags['output_uri']}", ctx)
    job, dropped = without_server_fields(empty_job() if filename is None else read(filename))
    if dropped:
        app.console.say(f"left out, because the server sets them: {', '.join(dropped)}")
    apply_flags(job, flags)
    return job


def _namespace(job: Manifest, target: Target) -> str | None:
    """Return the namespace of the file or of -n; they must not contradict each other."""
    from ptctl.errors import InputError

    file_namespace: str | None = job["metadata"].get("namespace")
    if file_namespace and target.typed_namespace and file_namespace != target.typed_namespace:
        raise InputError(f"metadata.namespace: {file_namespace!r} in the file contradicts -n {target.namespace}")
    return file_namespace or target.namespace
