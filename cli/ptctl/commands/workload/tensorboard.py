"""`ptctl workload tensorboard`: the command that opens a run's event files, or the opened thing itself."""

from __future__ import annotations

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command import Verb
from ptctl.ui.lazy_group import SETTINGS
from ptctl.ui.options import complete_names, to_cluster
from ptctl.ui.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload tensorboard llama-gsm8k             # prints the command
ptctl workload tensorboard llama-gsm8k --open      # runs it; Ctrl-C ends it
"""


@click.command("tensorboard", cls=Verb, context_settings=SETTINGS, examples=_EXAMPLES, foreign=NAMED)
@click.argument("name", shell_complete=complete_names)
@click.option("--open", "is_run", is_flag=True, help="Run TensorBoard here.")
@click.option("--port", type=click.IntRange(1, 65535), default=6006, show_default=True, help="Port on this machine.")
@click.option("--no-browser", is_flag=True, help="Do not open the browser (of a TensorBoard in the cluster).")
@to_cluster
@pass_app
def tensorboard(app: App, target: Target, name: str, is_run: bool, port: int, no_browser: bool) -> None:
    """Open TensorBoard on a run.

    Prints the command, which reads the run directory, also one in a bucket; --open runs it here. Of a job with
    spec.tensorboard.server, it starts the one in the cluster, forwards its port and opens the browser.
    """
    import shutil
    import subprocess

    from ptctl.errors import CliError
    from ptctl.jobs.lookup import fetch
    from ptctl.jobs.view import view

    manifest = fetch(app.connect(target), target, name)
    job = view(manifest)
    if (manifest["spec"].get("tensorboard") or {}).get("server"):
        from ptctl.connect.tensorboard_forward import forward

        forward(app, target, job, manifest["spec"]["output"]["uri"], port, opens=not no_browser)
        return
    where = f"{job.run_uri.removeprefix('file://')}/tensorboard"
    command = ["tensorboard", "--logdir", where, "--port", str(port)]
    if not is_run:
        app.console.data(" ".join(command))
        return
    if shutil.which("tensorboard") is None:
        raise CliError("TensorBoard is not installed", "pip install tensorboard")
    code = subprocess.call(command)
    if code:
        raise CliError(f"tensorboard ended with exit code {code}")
