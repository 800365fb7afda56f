"""`ptctl workload render`: the manifests that the operator would create, from the operator's own code."""

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import job_file

_EXAMPLES = """
ptctl workload render -f job.yaml
ptctl workload render -f job.yaml | kubectl apply --dry-run=server -f -
ptctl workload create -f job.yaml --num-slices 2 --dry-run=client -o yaml | ptctl workload render -f -
"""


@click.command("render", cls=Verb, examples=_EXAMPLES)
@job_file()
@click.option("-n", "--namespace", metavar="NS", help="Namespace for a job whose file has none.")
@click.option("--trainer-image", metavar="IMAGE", help="Image for a job that has none (an operator setting).")
@click.option("-o", "--output", "form", type=click.Choice(("yaml", "json")), default="yaml", help="Output format.")
@pass_app
def render(app: App, filename: str, namespace: str | None, trainer_image: str | None, form: str) -> None:
    """Print every manifest that the operator would create.

    Needs no cluster: the operator's own code runs here.
    """
    import json

    from ptapi.accelerators import one_process
    from ptctl.jobs.definition.file import check, read
    from ptctl.ui.output import stream
    from ptoperator.render import render as render_job
    from ptoperator.settings import Settings

    body = read(filename)
    job = check(body, filename)
    if namespace and not job.metadata.namespace:
        job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": namespace})})
    settings = Settings(trainer_image=trainer_image) if trainer_image else Settings()
    manifests = render_job(job, settings)
    if why := one_process.reason(job.spec):
        app.console.say(f"pathways.enabled: auto is true here: {why}")
    if form == "yaml":
        app.console.data(stream(manifests))
    else:
        app.console.data(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=2))
