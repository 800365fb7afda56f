"""`ptctl cluster create`: the flags, as gcloud and XPK name them."""

from collections.abc import Callable
from typing import Any

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import SectionOption, Verb
from ptctl.ui.command_line.google_options import cluster_name, one_name, project
from ptctl.ui.command_line.options import configured
from ptctl.ui.command_line.xpk_flags import CLUSTER_CREATE

Function = Callable[[Callable[..., Any]], Callable[..., Any]]
_PLACE, _TPU, _NET, _MORE = "Where", "Permanent node pools of TPUs or GPUs", "Network", "Other"
_EXAMPLES = """
ptctl cluster create tpus --zone us-east5-b                         # node pools come and go with jobs
ptctl cluster create tpus --zone us-east5-b --tpu-type v6e-16 --num-slices 2 --spot
ptctl cluster create tpus --zone us-east5-b --tpu-type v5p-128 --reservation team-a
ptctl cluster create tpus --zone us-east5-b --enable-pathways --private
ptctl cluster create gpus --zone us-east5-a --device-type h200-16 --reservation team-a    # and the GPUs' networks
ptctl cluster create tpus --zone us-east5-b --dry-run -o yaml       # every request; nothing is sent
ptctl cluster create tpus --zone us-east5-b --terraform ./tpus      # main.tf; nothing is sent
"""


def _option(heading: str, *names: str, **settings: Any) -> Function:
    return click.option(*names, cls=SectionOption, heading=heading, **settings)


@click.command("create", cls=Verb, examples=_EXAMPLES, replacements=CLUSTER_CREATE)
@cluster_name
@project
@_option(_PLACE, "--zone", multiple=True, metavar="ZONE", help="Zone of the nodes, and of the chips; repeatable.",
         default=lambda: [zone] if (zone := configured("zone")()) else [])  # fmt: skip
@_option(
    _PLACE, "--location", metavar="PLACE", help="Region, or a zone for a control plane in it; default: --zone's region."
)
@_option(_PLACE, "--release-channel", default="regular", show_default=True, metavar="CHANNEL",
         help="rapid, regular, stable or extended.")  # fmt: skip
@_option(_PLACE, "--gke-version", default="", metavar="VERSION", help="First version; default: the channel's.")
@_option(_TPU, "--tpu-type", "--device-type", "tpu_type", metavar="TYPE",
         help="Make pools of this type; default: the operator makes pools per job.")  # fmt: skip
@_option(
    _TPU,
    "--num-slices",
    type=click.IntRange(1, 512),
    default=None,
    metavar="N",
    help="Pools, one per slice or GPU type [1].",
)
@_option(_TPU, "--reservation", metavar="PATHS",
         help="Reservation, block or sub-block by name or path; several by commas, one per slice.")  # fmt: skip
@_option(_TPU, "--spot", is_flag=True, help="Spot VMs.")
@_option(_TPU, "--flex", is_flag=True, help="Flex-start: pools grow when Google has chips, for 7 days.")
@_option(_TPU, "--on-demand", is_flag=True, help="On demand.")
@_option(_MORE, "--enable-pathways", is_flag=True, help="Make cpu-np, the pool for Pathways' heads, now.")
@_option(_MORE, "--pathways-gce-machine-type", default="n2-standard-64", metavar="TYPE", help="Machine of cpu-np.")
@_option(_MORE, "--default-pool-cpu-machine-type", "cpu_machine", default="e2-standard-16", metavar="TYPE",
         help="Machine of the controllers' pool [e2-standard-16].")  # fmt: skip
@_option(_MORE, "--default-pool-cpu-num-nodes", "cpu_nodes", type=click.IntRange(1, 1000), default=1, metavar="N",
         help="Its nodes per zone at first [1]; it grows and shrinks.")  # fmt: skip
@_option(_MORE, "--node-service-account", default="", metavar="EMAIL", help="Google service account of the nodes.")
@_option(_MORE, "--enable-gcpfilestore-csi-driver", "filestore", is_flag=True, help="Filestore volumes.")
@_option(_MORE, "--enable-parallelstore-csi-driver", "parallelstore", is_flag=True, help="Parallelstore volumes.")
@_option(_MORE, "--enable-lustre-csi-driver", "lustre", is_flag=True, help="Managed Lustre volumes.")
@_option(_MORE, "--maintenance-window", metavar="HH:MM", help="Upgrades only in the four hours from then, UTC.")
@_option(_MORE, "--maintenance-window-start", metavar="TIME", help="With -end and -recurrence: begin of a window.")
@_option(_MORE, "--maintenance-window-end", metavar="TIME", help="Its end.")
@_option(_MORE, "--maintenance-window-recurrence", metavar="RRULE", help="Its rule: FREQ=WEEKLY;BYDAY=SA,SU.")
@_option(_MORE, "--labels", metavar="K=V,…", default="", help="Labels of the cluster, for the bill.")
@_option(_NET, "--network", default="", metavar="NAME", help="VPC network; default: default.")
@_option(_NET, "--subnetwork", default="", metavar="NAME", help="Its subnetwork in the region.")
@_option(_NET, "--gpu-networks", metavar="KIND|LIST",
         help="Of GPUs' NICs: tcpxo or rdma makes them, 'NAME=VPC/SUBNET, …' are there, or none. "
         "Default: made where --tpu-type has several machines with such NICs.")  # fmt: skip
@_option(_NET, "--private", is_flag=True, help="Nodes without public addresses.")
@_option(_NET, "--enable-private-endpoint", is_flag=True, help="The control plane has no public address either.")
@_option(_NET, "--authorized-networks", multiple=True, metavar="CIDR",
         help="Networks that reach the control plane; repeatable, or by commas.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print every request and send nothing.")
@click.option(
    "--terraform", metavar="DIRECTORY", type=click.Path(), help="Write the same as a Terraform module; send nothing."
)
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", help="Form of the dry run [yaml].")
@pass_app
def create(app: App, /, name: str | None, cluster_flag: str | None, **flags: Any) -> None:
    """Create a cluster on GKE, or continue creating one.

    Made with Workload Identity, Dataplane V2, and drivers for buckets and persistent disks. Each step looks before
    it writes: run the same command again after an interruption, or with more slices. It never deletes what runs.
    """
    from ptctl.cluster.actions.create_cluster import create_cluster

    create_cluster(app, one_name(name, cluster_flag), flags)
