"""`ptctl serve`: OpenAI's API with a model, on this machine or by vLLM in a cluster."""

from typing import Any

import click

from ptctl.ui.app import App, Target, pass_app
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.options import cluster_options, model

_EXAMPLES = """
ptctl serve /tmp/runs/my-job                        # here: a run's export, else its newest checkpoint
ptctl serve llama-gsm8k --step 100                  # here: a job's checkpoint
ptctl serve llama-gsm8k --on gke --tpu v6e-4        # in the cluster: vLLM, a Deployment and a Service
ptctl serve llama-gsm8k --on gke --gpu nvidia-l4 --replicas 1:4 --gateway outside --hostname llama.example.com
ptctl serve hf://Qwen/Qwen3-8B --tpu v6e-4 --adapter math=gs://lab/runs/math/export --render | kubectl diff -f -
ptctl serve llama-gsm8k --cloud-run --gpu nvidia-l4 --replicas 0:3 > service.yaml
"""
_CLUSTER_ONLY = (
    "tpu", "gpu", "replicas", "queue_length", "adapters", "gateway", "hostname", "endpoint_picker", "image",
    "service_account", "tool_parser",
)  # fmt: skip


@click.command("serve", cls=Verb, examples=_EXAMPLES)
@model
@click.option("--on", "place", type=click.Choice(("here", "gke")), default="here", help="Where it runs (here).")
@click.option("--render", is_flag=True, help="Print the manifests for a cluster; nothing is applied.")
@click.option("--cloud-run", is_flag=True, help="Print the service for `gcloud run services replace`.")
@click.option("--name", help="The model's name for clients; by default that of the job, run or directory.")
@click.option("--max-length", type=click.IntRange(min=2), help="Most tokens of prompt and answer.")
@click.option("--step", type=click.IntRange(1), metavar="N", help="Here: the checkpoint of this step, not the export.")
@click.option("--host", default="127.0.0.1", help="Here: address to listen on; 0.0.0.0 admits other machines.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, help="Here: port to listen on (8000); 0 picks one."
)
@click.option(
    "--image-files",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="Here: requests may name images in this directory by file://.",
)
@click.option("--https-images", is_flag=True, help="Here: requests may name images of the web by https://.")
@click.option("--tpu", metavar="TYPE", help="TPUs of each server, of one machine: v6e-4.")
@click.option("--gpu", metavar="TYPE[:N]", help="GPUs of each server: nvidia-l4, nvidia-h100-80gb:8.")
@click.option("--replicas", metavar="N|MIN:MAX", help="Servers, or their range by waiting requests; 0:N needs KEDA.")
@click.option(
    "--queue-length", type=click.IntRange(1), metavar="N", help="Waiting requests of a server before another."
)
@click.option("--adapter", "adapters", metavar="NAME=URI", multiple=True, help="A LoRA adapter beside the model.")
@click.option("--gateway", metavar="NAME", help="A Gateway through which it is reached.")
@click.option("--hostname", metavar="HOST", help="Host of the Gateway's route.")
@click.option("--endpoint-picker", metavar="SERVICE", help="Route by an InferencePool with this endpoint picker.")
@click.option("--image", metavar="IMAGE", help="Image with vLLM.")
@click.option("--tool-parser", metavar="NAME", help="vLLM's form of tool calls: hermes, llama3_json, mistral, openai.")
@click.option("--service-account", metavar="NAME", help="ServiceAccount of the pods, which may read the bucket.")
@cluster_options
@pass_app
def serve(
    app: App,
    /,
    target: Target,
    model: str,
    place: str,
    render: bool,
    cloud_run: bool,
    name: str | None,
    max_length: int | None,
    step: int | None,
    host: str,
    port: int,
    image_files: str | None,
    https_images: bool,
    **cluster: Any,
) -> int | None:
    """Answer OpenAI's API with a model, here or in a cluster.

    JOB: a job in the cluster. PATH: an export or run directory (with a slash: ./NAME), file://, gs://, hf://ORG/NAME
    or random://PRESET.

    Here, the engine that samples in training answers /v1/chat/completions and /v1/completions: streams, tools,
    images, stop strings, seeds, log-probs. For laptops and tests; without authentication. Ctrl-C ends it at once. Needs
    the trainer's packages: pip install 'posttrain[trainer-cpu]'.

    In a cluster, vLLM serves the export of a job that has succeeded, or a model of gs:// or hf://. The same command
    with other flags changes the server; `ptctl server list` and `ptctl server delete` do what they say.
    """
    if place == "gke" or render or cloud_run:
        if step is not None:
            raise click.UsageError("--step: vLLM serves exports; accepted: without --on gke, --render, --cloud-run")
        _in_cluster(app, target, model, (render, cloud_run), name=name, max_length=max_length, **cluster)
        return None
    if given := next((flag for flag in _CLUSTER_ONLY if cluster[flag]), None):
        flag = given.removesuffix("s") if given in ("adapters",) else given
        raise click.UsageError(f"--{flag.replace('_', '-')}: needs --on gke, --render or --cloud-run")
    from ptctl.runs.storage import model_uri
    from ptctl.trainer_process import run_verb

    flags = {"host": host, "port": port, "name": name, "max-length": max_length, "image-files": image_files}
    options = [f"--{flag}={value}" for flag, value in flags.items() if value is not None]
    options += ["--https-images"] * https_images
    return run_verb("serve", *options, "--", model_uri.of(app, target, model, step))


def _in_cluster(app: App, target: Target, model: str, printed: tuple[bool, bool], **flags: Any) -> None:
    from ptctl.runs.servers import applying, definition
    from ptctl.ui.output import stream
    from ptoperator.render.serving import serving_objects
    from ptoperator.render.serving.cloud_run import cloud_run_service

    is_rendered, is_cloud_run = printed
    account = flags.pop("service_account")
    fields = definition.fields(**flags)
    server = definition.server(app, target, model, fields, account, is_applied=not any(printed))
    if is_cloud_run:
        app.console.data(stream([cloud_run_service(server)]))
    elif is_rendered:
        app.console.data(stream(serving_objects(server)))
    else:
        applying.apply(app, target, server)
