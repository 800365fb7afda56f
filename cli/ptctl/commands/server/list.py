"""`ptctl server list`."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import all_namespaces, cluster_options, output

_EXAMPLES = """
ptctl server list
ptctl server list -A -o json
"""


@click.command("list", cls=Verb, examples=_EXAMPLES)
@output("json", "yaml", "name")
@cluster_options
@all_namespaces
@pass_app
def list_servers(app: App, target: Target, output: str | None) -> None:
    """List the servers of a namespace.

    Those of `ptctl serve --on gke`, and of jobs with spec.serve.
    """
    from ptctl.runs.servers import applying

    applying.print_servers(app, target, output)
