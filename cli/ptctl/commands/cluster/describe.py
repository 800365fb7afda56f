"""`ptctl cluster describe`: a page about one cluster."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.google_options import cluster_name, location, one_name, project
from ptctl.ui.command_line.options import output
from ptctl.ui.command_line.xpk_flags import CLUSTER_OTHERS

_EXAMPLES = """
ptctl cluster describe tpus
ptctl cluster describe tpus -o json | jq .nodePools[].status
"""


@click.command("describe", cls=Verb, examples=_EXAMPLES, replacements=CLUSTER_OTHERS)
@cluster_name
@project
@location
@output("json", "yaml", "name")
@pass_app
def describe(
    app: App, name: str | None, cluster_flag: str | None, project: str | None, location: str | None, output: str | None
) -> None:
    """Show a cluster and its node pools."""
    from ptctl.cluster.actions.show_clusters import describe_cluster

    describe_cluster(app, one_name(name, cluster_flag), project, location, output)
