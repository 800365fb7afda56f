"""`ptctl workload connect`: where a program reaches the chips of a headless Pathways job."""

from __future__ import annotations

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command import Verb
from ptctl.ui.lazy_group import SETTINGS
from ptctl.ui.options import complete_names, to_cluster
from ptctl.ui.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload connect notebook              # prints the variables for a program in the cluster
ptctl workload connect notebook --forward    # brings the proxy to this machine; Ctrl-C ends it
"""


@click.command("connect", cls=Verb, context_settings=SETTINGS, examples=_EXAMPLES, foreign=NAMED)
@click.argument("name", shell_complete=complete_names)
@click.option("--forward", is_flag=True, help="Run kubectl port-forward to the proxy.")
@click.option("--port", type=click.IntRange(1, 65535), default=29000, show_default=True, help="Port of --forward here.")
@to_cluster
@pass_app
def connect(app: App, target: Target, name: str, forward: bool, port: int) -> None:
    """Reach the chips of a headless Pathways job.

    Prints the variables that JAX needs in a pod of the cluster; --forward makes the proxy reachable from here.
    """
    import shutil

    from ptctl.connect.pathways_proxy import address, head_of, variables
    from ptctl.connect.port_forward import command, run
    from ptctl.errors import CliError
    from ptctl.jobs.lookup import fetch
    from ptoperator.kube.names import PATHWAYS_PROXY_PORT

    kube = app.connect(target)
    job = fetch(kube, target, name)
    if not forward:
        app.console.data(variables(address(job)))
        return
    if shutil.which("kubectl") is None:
        raise CliError("kubectl is not installed, which forwards the port", "https://kubernetes.io/docs/tasks/tools")
    head = head_of(kube, job)
    app.console.say(f"in another terminal: {variables(f'grpc://localhost:{port}')} python …")
    run(command(target, job["metadata"]["namespace"], f"pod/{head}", port, PATHWAYS_PROXY_PORT))
