"""`ptctl cluster list`: one line per cluster."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.google_options import project
from ptctl.ui.command_line.options import output
from ptctl.ui.command_line.xpk_flags import CLUSTER_OTHERS

_EXAMPLES = """
ptctl cluster list --project my-project
ptctl cluster list --location us-east5 -o json
"""


@click.command("list", cls=Verb, examples=_EXAMPLES, replacements=CLUSTER_OTHERS)
@project
@click.option("--location", default="-", metavar="PLACE", help="Region or zone; default: all.")
@output("json", "yaml", "name")
@pass_app
def list_clusters(app: App, project: str | None, location: str, output: str | None) -> None:
    """List the project's clusters."""
    from ptctl.cluster.actions.show_clusters import list_clusters as show

    show(app, project, location, output)
