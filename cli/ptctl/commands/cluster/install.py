"""`ptctl cluster install`: posttrain in a cluster, without Helm on the machine."""

from typing import Any

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.google_options import install_options, one_name
from ptctl.ui.command_line.xpk_flags import CLUSTER_ADAPT

_EXAMPLES = """
ptctl cluster install tpus --image REGISTRY/posttrain-operator:0.1.0 --trainer-image REGISTRY/posttrain-trainer:0.1.0
ptctl cluster install --image … --trainer-image … --quota v6e-16=2 --quota v5p-128=1
ptctl cluster install tpus --image … --trainer-image … --dry-run > posttrain.yaml
"""


@click.command("install", cls=Verb, examples=_EXAMPLES, replacements=CLUSTER_ADAPT)
@install_options
@pass_app
def install(app: App, /, target: Target, name: str | None, cluster_flag: str | None, **flags: Any) -> None:
    """Install posttrain in a cluster, without Helm.

    NAME: a cluster of GKE; without it the kubeconfig's. Applies the CRD, rights and operator of the chart, and with
    --quota Kueue's queues. JobSet and Kueue are fetched only from where --jobset-manifests and --kueue-manifests say.
    """
    from ptctl.cluster.in_cluster.installation import install as carry_out

    carry_out(app, target, one_name(name, cluster_flag) if name or cluster_flag else None, flags)
