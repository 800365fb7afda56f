"""`ptctl workload tensorboard`: print the command that opens a run's event files, or run it."""

from typing import Any

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, job_or_directory
from ptctl.ui.command_line.xpk_flags import NAMED

_EXAMPLES = """
ptctl workload tensorboard llama-gsm8k             # prints the command
ptctl workload tensorboard llama-gsm8k --open      # runs it until Ctrl-C
ptctl workload tensorboard runs/llama-gsm8k --open # on a run of `ptctl train`
"""


@click.command("tensorboard", cls=Verb, examples=_EXAMPLES, replacements=NAMED)
@job_or_directory
@click.option("--open", "opens", is_flag=True, help="Run TensorBoard here.")
@click.option("--port", type=click.IntRange(1, 65535), default=6006, show_default=True, help="Port on this machine.")
@click.option("--no-browser", is_flag=True, help="Do not open the browser for a TensorBoard in the cluster.")
@cluster_options
@pass_app
def tensorboard(app: App, target: Target, name: str, opens: bool, port: int, no_browser: bool) -> None:
    """Open TensorBoard on a run.

    Prints the command that reads the run directory, also in a bucket; --open runs it here. A run on a
    PersistentVolumeClaim is copied here first, by a short-lived pod. For a job with spec.tensorboard.server, starts the
    TensorBoard in the cluster, forwards its port and opens the browser.
    """
    import shutil
    import tempfile
    from pathlib import Path

    from ptctl.errors import CliError
    from ptctl.jobs.view import view
    from ptctl.runs.storage import claim, local_run
    from ptctl.ui import interrupts

    manifest = local_run.find(app, target, name)
    job = view(manifest)
    if not local_run.is_directory(name) and _has_server(manifest, app):
        from ptctl.port_forwards.tensorboard_forward import forward

        forward(app, target, job, manifest["spec"]["output"]["uri"], port, opens=not no_browser)
        return
    run = job.run_uri.removeprefix("file://")
    if claim.is_elsewhere(job):
        run = tempfile.mkdtemp(prefix="posttrain-")
        claim.copy(app.connect(target), job, Path(run), "tensorboard")
        app.console.say(f"copied from the claim, as it is now, to {run}")
    where = f"{run}/tensorboard"
    command = ["tensorboard", "--logdir", where, "--port", str(port)]
    if not opens:
        app.console.data(" ".join(command))
        return
    if shutil.which("tensorboard") is None:
        raise CliError("TensorBoard is not installed", "pip install tensorboard")
    code = interrupts.call(command)
    if code:
        raise CliError(f"tensorboard exited with code {code}")


def _has_server(manifest: dict[str, Any], app: App) -> bool:
    """Return True if the job has a TensorBoard server; say so if it asks for one that the operator does not start."""
    if not (manifest["spec"].get("tensorboard") or {}).get("server"):
        return False
    link = ((manifest.get("status") or {}).get("links") or {}).get("tensorboard", "")
    if not link.startswith("tensorboard "):
        return True
    app.console.say("this operator starts no TensorBoard servers (tensorboard.servers in its chart's values)")
    return False
