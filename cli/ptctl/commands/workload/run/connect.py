"""`ptctl workload connect`: how a program reaches the chips of a headless Pathways job."""

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, complete_names
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload connect notebook              # prints the variables for a program in the cluster
ptctl workload connect notebook --forward    # forwards the proxy to this machine until Ctrl-C
"""


@click.command("connect", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@click.argument("name", shell_complete=complete_names)
@click.option("--forward", is_flag=True, help="Run kubectl port-forward to the proxy.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=29000, show_default=True, help="Local port for --forward."
)
@cluster_options
@pass_app
def connect(app: App, target: Target, name: str, forward: bool, port: int) -> None:
    """Connect to the chips of a headless Pathways job.

    Prints the variables that JAX needs in a pod of the cluster; --forward makes the proxy reachable from this machine.
    """
    import shutil

    from ptctl.errors import CliError
    from ptctl.jobs.lookup import fetch
    from ptctl.port_forwards.pathways_proxy import address, head_of, variables
    from ptctl.port_forwards.port_forward import command, run
    from ptoperator.kube.names import PATHWAYS_PROXY_PORT

    kube = app.connect(target)
    job = fetch(kube, target, name)
    if not forward:
        app.console.data(variables(address(job)))
        return
    if shutil.which("kubectl") is None:
        raise CliError("kubectl, which forwards the port, is not installed", "https://kubernetes.io/docs/tasks/tools")
    head = head_of(kube, job)
    app.console.say(f"in another terminal: {variables(f'grpc://localhost:{port}')} python …")
    run(command(target, job["metadata"]["namespace"], f"pod/{head}", port, PATHWAYS_PROXY_PORT))
