"""`ptctl cluster`: the verbs on clusters of GKE, one file each."""

import click

from ptctl.ui.command_line.lazy_group import Lazy, LazyGroup
from ptctl.ui.command_line.xpk_commands import CLUSTER

_MAKE = "Make and remove"
_USE = "Inspect and use"

COMMANDS = {
    "create": Lazy("ptctl.commands.cluster.create:create", "Create a cluster on GKE, or continue creating one.", _MAKE),
    "install": Lazy("ptctl.commands.cluster.install:install", "Install posttrain in a cluster, without Helm.", _MAKE),
    "adapt": Lazy(
        "ptctl.commands.cluster.adapt:adapt", "Prepare an existing cluster: XPK's, gcluster's or your own.", _MAKE
    ),
    "delete": Lazy("ptctl.commands.cluster.delete:delete", "Delete a cluster that ptctl made.", _MAKE),
    "list": Lazy("ptctl.commands.cluster.list:list_clusters", "List the project's clusters.", _USE),
    "describe": Lazy("ptctl.commands.cluster.describe:describe", "Show a cluster and its node pools.", _USE),
    "doctor": Lazy("ptctl.commands.cluster.doctor:doctor", "Examine a cluster, or explain one job.", _USE),
    "queue": Lazy("ptctl.commands.cluster.queue:queue", "Show which jobs wait, and for what.", _USE),
    "quota": Lazy("ptctl.commands.cluster.quota:quota", "Show Kueue's quotas, and how much is in use.", _USE),
    "nodes": Lazy("ptctl.commands.cluster.nodes:nodes", "Show the node pools with chips, and who uses them.", _USE),
    "credentials": Lazy("ptctl.commands.cluster.credentials:credentials", "Write a cluster into the kubeconfig.", _USE),
    "token": Lazy("ptctl.commands.cluster.token:token", "Print a token, as kubectl's credential plugin.", _USE),
}

_EXAMPLES = """
ptctl cluster create tpus --project my-project --zone us-east5-b
ptctl cluster create tpus --project my-project --zone us-east5-b --tpu-type v6e-16 --num-slices 2 --spot
ptctl cluster credentials tpus --project my-project
ptctl cluster list --project my-project
"""


@click.group("cluster", cls=LazyGroup, table=COMMANDS, moved=CLUSTER, examples=_EXAMPLES)
def cluster() -> None:
    """Create, inspect and delete clusters on GKE."""
