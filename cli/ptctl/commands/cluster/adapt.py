"""`ptctl cluster adapt`: make somebody's cluster fit."""

from typing import Any

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.google_options import install_options, location, project
from ptctl.ui.command_line.options import context_options

_EXAMPLES = """
ptctl cluster adapt xpk-cluster --image REGISTRY/posttrain-operator:0.1.0 \\
  --trainer-image REGISTRY/posttrain-trainer:0.1.0
"""


@click.command("adapt", cls=Verb, examples=_EXAMPLES)
@click.argument("name", required=False)
@project
@location
@install_options
@context_options
@pass_app
def adapt(app: App, /, target: Target, name: str | None, **flags: Any) -> None:
    """Make an existing cluster fit: XPK's, gcluster's or your own.

    Says what is there, installs what lacks, and changes nothing that somebody else manages. What lacks on GKE's side
    is told, with the command.
    """
    from ptctl.cluster.in_cluster.installation import adapt as carry_out

    carry_out(app, target, name, flags)
