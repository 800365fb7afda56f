"""`ptctl local env`: one shell line that points kubectl and ptctl at the embedded cluster."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb

_EXAMPLES = """
eval "$(ptctl local env)"            # bash, zsh
ptctl local env --shell fish | source
"""


@click.command("env", cls=Verb, examples=_EXAMPLES)
@click.option(
    "--shell", type=click.Choice(("bash", "zsh", "fish")), default="bash", show_default=True, help="Syntax to print."
)
@pass_app
def env(app: App, shell: str) -> None:
    """Print the command that points kubectl and ptctl at it."""
    import shlex

    from ptctl import local_cluster
    from ptctl.errors import CliError

    if not local_cluster.is_up():
        raise CliError("the cluster on this machine is not up", "`ptctl local up` starts it")
    path = shlex.quote(str(local_cluster.kubeconfig()))
    app.console.data(f"set -gx KUBECONFIG {path}" if shell == "fish" else f"export KUBECONFIG={path}")
