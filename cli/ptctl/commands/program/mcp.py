"""`ptctl mcp`: tools for coding agents, by the Model Context Protocol."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options

_EXAMPLES = """
ptctl mcp                                    # on stdin and stdout: an agent starts it
ptctl mcp -n team-a --allow-writes           # the agent may create and suspend jobs
ptctl mcp --http 8012                        # at http://127.0.0.1:8012/mcp, behind a token
"""


@click.command("mcp", cls=Verb, examples=_EXAMPLES)
@click.option("--http", "port", type=click.IntRange(1, 65535), metavar="PORT", help="Serve HTTP on this machine.")
@click.option("--allow-writes", is_flag=True, help="Also offer create_job and suspend_job.")
@cluster_options
@pass_app
def mcp(app: App, target: Target, port: int | None, allow_writes: bool) -> None:
    """Offer ptctl's verbs to coding agents as tools.

    Reading verbs, validate, plan and doctor; each tool is a command of ptctl with your own rights in the cluster.
    Nothing is created or changed unless --allow-writes says so. Needs pip install 'posttrain[mcp]'.
    """
    from importlib.util import find_spec

    from ptctl.errors import CliError

    if find_spec("mcp") is None:
        raise CliError("the package mcp is not installed", "pip install 'posttrain[mcp]'")
    from ptctl.jobs.agent_server import serve

    serve(app, target, port, allow_writes=allow_writes)
