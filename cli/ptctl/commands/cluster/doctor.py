"""`ptctl cluster doctor`: what is wrong with a cluster, or keeps a job waiting."""

from typing import Any

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, complete_names

_EXAMPLES = """
ptctl cluster doctor
ptctl cluster doctor --tpu-type v6e-16 --num-slices 2 --reservation team-a --zone us-east5-b
ptctl cluster doctor --from-pods --bucket gs://my-bucket/runs     # also what only a pod can tell
ptctl cluster doctor llama-gsm8k                 # what this job waits for, what was tried, what comes next
ptctl cluster doctor -o json | jq '.findings[] | select(.severity == "error")'
"""


@click.command("doctor", cls=Verb, examples=_EXAMPLES)
@click.argument("job", required=False, shell_complete=complete_names)
@click.option("--tpu-type", metavar="TYPE", help="Examine the quotas for these chips, too.")
@click.option("--num-slices", type=click.IntRange(1, 512), default=1, metavar="N", help="Number of slices.")
@click.option("--reservation", metavar="PATH", help="Examine this reservation, too.")
@click.option("--zone", metavar="ZONE", help="Zone of the chips; default: the cluster's location.")
@click.option("--from-pods", is_flag=True, help="Start two pods for a minute: image, DNS between pods, bucket.")
@click.option("--bucket", metavar="URI", help="With --from-pods: may trainers use this gs:// path?")
@click.option("--image", metavar="IMAGE", help="With --from-pods: this image; default: the operator's trainer.")
@click.option("--strict", is_flag=True, help="Exit code 1 for warnings, too.")
@click.option("-o", "--output", type=click.Choice(["json"]), help="Output format.")
@cluster_options
@pass_app
def doctor(app: App, /, target: Target, job: str | None, **flags: Any) -> int:
    """Examine a cluster, or explain one job.

    Versions, rights, webhooks, images, queues, clock; on GKE permissions, quotas and reservations. Each finding comes
    with its fix, and nothing is changed; --from-pods starts two pods with the trainer's image and service account, and
    deletes them. Exit code 1: an error was found.
    """
    if job is not None:
        from ptctl.cluster.doctor.explain import explain

        explain(app, target, job, flags["output"])
        return 0
    from ptctl.cluster.doctor.examine import doctor as examine

    return examine(app, target, flags)
