"""What a server is made from, whoever asks for it: the input of every builder here."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ptapi import run_directory
from ptapi.spec import PostTrainJob
from ptapi.spec.model import SecretKeyRef
from ptapi.spec.pods.volumes import Volume
from ptapi.spec.serve import Serve
from ptkube.resources import Manifest
from ptoperator.kube import labels, names
from ptoperator.render.layout import Layout

PORT = 8000
INTERCEPTOR = "keda-add-ons-http-interceptor-proxy.keda.svc:8080"
"""Where KEDA's HTTP add-on takes requests for servers that may not run, in its usual namespace."""
_SUFFIX = "-serve"
"""A JobSet has a Service of its own name, which is often the job's."""


class Weights(NamedTuple):
    """A model to load, and the adapters beside it by their names for clients: URIs of `gs://`, `file://` or `hf://`."""

    model: str
    adapters: Mapping[str, str] = {}
    revision: str | None = None


@dataclass(frozen=True)
class Server:
    """A server of a model.

    model_name: for clients. lora_rank: the largest of the adapters'. volumes: those that `file://` weights may lie on.
    """

    name: str
    namespace: str
    model_name: str
    weights: Weights
    spec: Serve
    job: str = ""
    service_account: str = "default"
    lora_rank: int = 64
    token: SecretKeyRef | None = None
    volumes: tuple[Volume, ...] = ()
    image_pull_secrets: tuple[str, ...] = ()
    manager: str = labels.MANAGER
    owner_references: list[Manifest] = field(default_factory=list)

    @property
    def host(self) -> str:
        """Return its host in the cluster; with KEDA, the header by which the interceptor tells it from others."""
        return f"{self.name}.{self.namespace}.svc"

    @property
    def url(self) -> str:
        """Return where clients in the cluster reach it; with KEDA, its interceptor, which wants the header `Host`."""
        return f"http://{INTERCEPTOR if self.spec.replicas.min == 0 else f'{self.host}:{PORT}'}/v1"

    def metadata(self) -> Manifest:
        """Return the metadata of each of its objects."""
        owners = {"ownerReferences": self.owner_references} if self.owner_references else {}
        return {"name": self.name, "namespace": self.namespace, "labels": self.labels(), **owners}

    def labels(self) -> Manifest:
        """Return the labels of its objects."""
        job = {labels.JOB_SERVED: self.job} if self.job else {}
        return {labels.NAME: "posttrain", labels.MANAGED_BY: self.manager, labels.COMPONENT: "server", **job,
                labels.SERVER: self.name}  # fmt: skip

    def selector(self) -> Manifest:
        """Return the labels that tell its pods from all others."""
        return {labels.SERVER: self.name}


def server_name(base: str) -> str:
    """Return the name of the server of a job or model."""
    return f"{names.cut(base, names.DNS_LABEL - len(_SUFFIX))}{_SUFFIX}"


def weights_of(job: PostTrainJob, serve: Serve) -> Weights:
    """Return what a finished job has to serve: its export, or its base model with the adapters that it exported."""
    spec = job.spec
    export = f"{run_directory.run_uri(spec.output.uri, job.metadata.name)}/{run_directory.EXPORT}"
    beside = {adapter.name: adapter.uri for adapter in serve.adapters}
    if spec.export.format == "peft":
        name = serve.name or job.metadata.name
        return Weights(spec.model.uri, {name: export, **beside}, spec.model.revision)
    return Weights(export, beside)


def server_of(layout: Layout) -> Server:
    """Return the server that a job asks for, which goes with the job."""
    serve = layout.job.spec.serve
    assert serve is not None
    made = server_of_job(layout.job, serve, layout.settings.trainer_service_account)
    return replace(made, owner_references=layout.owner_references)


def server_of_job(job: PostTrainJob, serve: Serve, service_account: str) -> Server:
    """Return the server of a finished job. service_account: of jobs that name none."""
    spec, name = job.spec, job.metadata.name
    is_base = spec.export.format == "peft"
    lora = spec.training.lora
    return Server(
        name=server_name(name),
        namespace=job.metadata.namespace or "default",
        model_name=spec.model.uri.partition("://")[2] if is_base else serve.name or name,
        weights=weights_of(job, serve),
        spec=serve,
        job=name,
        lora_rank=max(64, lora.rank if lora else 0),
        service_account=spec.service_account_name or service_account,
        token=spec.model.token_secret_ref,
        volumes=tuple(spec.volumes),
        image_pull_secrets=tuple(spec.image_pull_secrets),
    )
