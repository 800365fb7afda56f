"""`ptctl cluster delete`: a cluster that ptctl made, with everything in it."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.google_options import cluster_name, location, one_name, project
from ptctl.ui.command_line.xpk_flags import CLUSTER_OTHERS

_EXAMPLES = """
ptctl cluster delete tpus
ptctl cluster delete tpus --yes --force      # without a question, and with the jobs that run
"""


@click.command("delete", cls=Verb, examples=_EXAMPLES, replacements=CLUSTER_OTHERS)
@cluster_name
@project
@location
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--force", is_flag=True, help="Delete even if jobs have not ended, or cannot be listed.")
@pass_app
def delete(
    app: App,
    name: str | None,
    cluster_flag: str | None,
    project: str | None,
    location: str | None,
    yes: bool,
    force: bool,
) -> None:
    """Delete a cluster that ptctl made.

    Refuses one that ptctl did not make, that has node pools of others, or whose jobs have not ended.
    """
    from ptctl.cluster.actions.delete_cluster import delete_cluster

    delete_cluster(app, one_name(name, cluster_flag), project, location, yes=yes, force=force)
