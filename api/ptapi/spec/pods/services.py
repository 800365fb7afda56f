"""Services of a job: models and programs in pods of their own, beside the trainer, which reaches them by name.

A judge, a teacher or an environment's server is one. Left out: who asks a service, which the fields that name it say.
"""

from typing import Annotated

from pydantic import Field

from ptapi.spec.base import DNS_LABEL, AcceleratorType, AdapterUri, Image, PositiveInt, Revision, SpecModel, by_key
from ptapi.spec.pods.env import EnvVar

MOST_SERVICES = 8
MOST_REPLICAS = 64
RESERVED_NAMES = ("trainer", "sampler", "slice", "head", "worker", "preflight", "stage", "sandbox")
"""What the job's other pods are called."""
ServiceName = Annotated[str, Field(min_length=1, max_length=12, pattern=DNS_LABEL)]
Port = Annotated[int, Field(ge=1024, le=65535)]
Argument = Annotated[str, Field(max_length=4096)]


class ServedModel(SpecModel):
    """A model that vLLM serves under the service's name."""

    uri: AdapterUri
    """`hf://org/name`, `gs://bucket/dir`, or `file:///dir` on one of `volumes`."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` model."""


class ServiceAccelerator(SpecModel):
    """The chips of each replica."""

    type: AcceleratorType
    """TPUs or GPUs of one host: `v6e-4`, `v5p-8`, `h100-1`, …"""


class Service(SpecModel):
    """A model that vLLM serves, or a program of an image: `model`, `image`, or both where the image has vLLM."""

    name: ServiceName
    """Its name in the fields that use it, and in `POSTTRAIN_SERVICES`, where programs of yours find its URLs."""
    replicas: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    """How many there are, with chips of their own. The trainer spreads its requests over them."""
    accelerator: ServiceAccelerator | None = None
    """The chips of each. Unset: none."""
    model: ServedModel | None = None
    """The model of a judge or teacher."""
    max_model_len: PositiveInt | None = None
    """Most tokens of prompt and answer. Unset: the model's own."""
    image: Image | None = None
    """The program, or with `model` an image with vLLM. Unset: vLLM 0.32.0's, for the chips."""
    command: Annotated[list[Argument], Field(max_length=64)] = []
    """Replaces the image's entry point."""
    args: Annotated[list[Argument], Field(max_length=64)] = []
    """Arguments of the program; with `model` further ones of `vllm serve`."""
    env: Annotated[list[EnvVar], Field(max_length=32, json_schema_extra=by_key("name"))] = []
    """Its environment variables; those of the trainer are not passed on."""
    port: Port = 8000
    """Where it listens."""
    readiness_path: Annotated[str, Field(max_length=256, pattern=r"^/[^\s]*$")] | None = None
    """Path that answers 200 once the program serves. Unset: it serves once `port` is open."""

    @property
    def is_program(self) -> bool:
        """Return True for a program of its own, which serves no model."""
        return self.model is None
