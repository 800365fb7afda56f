"""`ptctl workload render`: the manifests that the operator would create, from the operator's own code."""

from typing import TYPE_CHECKING

import click

from ptctl.ui.app import App, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import job_file

if TYPE_CHECKING:
    from ptapi.spec import PostTrainJob
    from ptkube.resources import Manifest
    from ptoperator.settings import Settings

_EXAMPLES = """
ptctl workload render -f job.yaml
ptctl workload render -f job.yaml | kubectl apply --dry-run=server -f -
ptctl workload create -f job.yaml --num-slices 2 --dry-run=client -o yaml | ptctl workload render -f -
ptctl workload render -f job.yaml --cloud-run > cloud-run.yaml    # then: gcloud run jobs replace cloud-run.yaml
"""


@click.command("render", cls=Verb, examples=_EXAMPLES)
@job_file()
@click.option("-n", "--namespace", metavar="NS", help="Namespace for a job whose file has none.")
@click.option("--trainer-image", metavar="IMAGE", help="Image for a job that has none (an operator setting).")
@click.option("--cloud-run", is_flag=True, help="A Cloud Run job instead, of a job of one machine.")
@click.option("-o", "--output", "form", type=click.Choice(("yaml", "json")), default="yaml", help="Output format.")
@pass_app
def render(
    app: App, filename: str, namespace: str | None, trainer_image: str | None, cloud_run: bool, form: str
) -> None:
    """Print every manifest that the operator would create.

    Needs no cluster: the operator's own code runs here. A Cloud Run job takes its secrets from Secret Manager, by the
    names that the job gives, and goes on from its last checkpoint when Cloud Run stops an attempt.
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
    settings = Settings()
    if trainer_image:
        settings = Settings(trainer_image=trainer_image, gpu_trainer_image=trainer_image)
    manifests = [_cloud_run(app, job, settings)] if cloud_run else render_job(job, settings)
    if why := one_process.reason(job.spec):
        app.console.say(f"pathways.enabled: auto is true here: {why}")
    if form == "yaml":
        app.console.data(stream(manifests))
    else:
        listed = {"apiVersion": "v1", "kind": "List", "items": manifests}
        app.console.data(json.dumps(manifests[0] if cloud_run else listed, indent=2))


def _cloud_run(app: App, job: "PostTrainJob", settings: "Settings") -> "Manifest":
    """Return the Cloud Run job, and say for how long it may run."""
    from ptctl.jobs.definition.cloud_run import attempt_s, cloud_run_job, retries
    from ptctl.ui.duration import short
    from ptoperator.render.layout import layout_of

    layout = layout_of(job, settings)
    made = cloud_run_job(layout)
    app.console.say(
        f"attempts of at most {short(attempt_s(layout))}, {retries(layout)} more after the first: "
        "checkpoint.everySteps says how much the next one repeats; nothing is preflighted there"
    )
    app.console.say(f"next: gcloud run jobs replace FILE --region REGION; gcloud run jobs execute {layout.name}")
    return made
