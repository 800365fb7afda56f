"""How a trained model is served: vLLM on TPUs or GPUs, behind one Service."""

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import AdapterUri, DnsLabel, DnsName, Image, LabelValue, PositiveInt, PythonName, SpecModel, by_key

ServingTpu = Literal[
    "v4-8", "v5e-1", "v5e-4", "v5e-8", "v5p-8", "v6e-1", "v6e-4", "v6e-8", "tpu7x-2", "tpu7x-8"
]  # fmt: skip
"""The types that one machine has: vLLM on TPUs does not span machines."""


class ServingGpu(SpecModel):
    """GPUs of one machine."""

    type: Annotated[LabelValue, Field(min_length=1)]
    """The node label `cloud.google.com/gke-accelerator`, such as `nvidia-l4` or `nvidia-h100-80gb`."""
    count: Annotated[int, Field(ge=1, le=16)] = 1
    """GPUs of each server; the model is split over them."""


class ServingReplicas(SpecModel):
    """How many servers run. More than `min` start while requests wait."""

    min: Annotated[int, Field(ge=0, le=1000)] = 1
    """Fewest servers. 0: none while nobody asks, which needs KEDA's HTTP add-on and lets requests wait at its
    interceptor until a server has started."""
    max: Annotated[int, Field(ge=1, le=1000)] = 1
    """Most servers."""
    queue_length: Annotated[int, Field(ge=1, le=10_000)] = 8
    """Requests that wait at a server, on average, before another one is started (`vllm:num_requests_waiting`); with
    `min: 0` the requests under way."""


class ServingAdapter(SpecModel):
    """A LoRA adapter that is served beside the model, as a model of its own name."""

    name: DnsLabel
    """The model's name for clients."""
    uri: AdapterUri
    """A directory in PEFT's layout: `gs://bucket/runs/job/export`, `hf://org/name`."""


class ServingGateway(SpecModel):
    """A Gateway through which the model is reached."""

    name: DnsName
    """Name of a Gateway that is there."""
    namespace: DnsLabel | None = None
    """Its namespace. Unset: the job's."""
    hostname: DnsName | None = None
    """Host of the route. Unset: every host of the Gateway."""
    endpoint_picker: DnsName | None = None
    """Service of an endpoint picker of the Gateway API inference extension (port 9002), which chooses the server by
    queue and cache. Unset: requests go to the Service."""


class ServingBar(SpecModel):
    """What the last evaluation must have reached; exactly one of `atLeast` and `atMost`."""

    metric: Annotated[str, Field(pattern=r"^eval/\S+$", max_length=200)]
    """The evaluation metric, by its name in `metrics.jsonl`, such as `eval/reward`."""
    at_least: Annotated[float, Field(ge=-1e9, le=1e9)] | None = None
    """Serve if the metric is this or more."""
    at_most: Annotated[float, Field(ge=-1e9, le=1e9)] | None = None
    """Serve if the metric is this or less."""


class Serve(SpecModel):
    """A server with OpenAI's API for the trained model: vLLM in a Deployment, with a Service."""

    bar: ServingBar | None = None
    """Serve only a model that is good enough. Unset: every model of a job that succeeded."""

    tpu: ServingTpu | None = None
    """TPU type of each server. Exactly one of `tpu` and `gpu`."""
    gpu: ServingGpu | None = None
    """GPUs of each server."""
    name: DnsLabel | None = None
    """The model's name for clients. Unset: the job's."""
    image: Image | None = None
    """Image with vLLM. Unset: `vllm/vllm-tpu:latest` or `vllm/vllm-openai:latest`; name a version for production."""
    max_length: PositiveInt | None = None
    """Most tokens of prompt and answer. Unset: the model's positions, which may be more than the chips hold."""
    tool_parser: PythonName | None = None
    """vLLM's name of the form in which the model writes calls of tools: `hermes` (Qwen 2.5 and 3), `llama3_json`,
    `mistral`, `openai` (gpt-oss). Unset: requests with tools are refused, unless they name the one to call."""
    replicas: ServingReplicas = ServingReplicas()
    """How many servers run."""
    adapters: Annotated[list[ServingAdapter], Field(max_length=32, json_schema_extra=by_key("name"))] = []
    """LoRA adapters beside the model, such as those of other jobs on the same base."""
    gateway: ServingGateway | None = None
    """A Gateway through which it is reached. Unset: within the cluster only."""
