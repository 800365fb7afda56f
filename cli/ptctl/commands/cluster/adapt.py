"""`ptctl cluster adapt`: prepare a cluster that ptctl did not make."""

from typing import Any

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.google_options import install_options, one_name
from ptctl.ui.command_line.xpk_flags import CLUSTER_ADAPT

_EXAMPLES = """
ptctl cluster adapt xpk-cluster --image REGISTRY/posttrain-operator:0.1.0 \\
  --trainer-image REGISTRY/posttrain-trainer:0.1.0
"""


@click.command("adapt", cls=Verb, examples=_EXAMPLES, replacements=CLUSTER_ADAPT)
@install_options
@pass_app
def adapt(app: App, /, target: Target, name: str | None, cluster_flag: str | None, **flags: Any) -> None:
    """Prepare an existing cluster: XPK's, gcluster's or your own.

    Shows what is installed, installs what is missing, and changes nothing that others manage. For what is missing on
    GKE's side it prints the command.
    """
    from ptctl.cluster.in_cluster.installation import adapt as carry_out

    carry_out(app, target, one_name(name, cluster_flag) if name or cluster_flag else None, flags)
