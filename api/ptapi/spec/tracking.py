"""Experiment trackers that a run reports to, beside `metrics.jsonl` and TensorBoard in its run directory."""

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import HttpUrl, SpecModel
from ptapi.spec.model import SecretKeyRef

TRACKER_NAME = r"^[^/\\#?%:]+$"
TRACKING_URI = r"^(https?://[^\s?#@]+|databricks(://[^\s?#@]+)?)$"
SPACE = r"^[\w.-]+(/[\w.-]+)?$"

TrackerName = Annotated[str, Field(min_length=1, max_length=128, pattern=TRACKER_NAME)]
Tag = Annotated[str, Field(min_length=1, max_length=64)]


class Wandb(SpecModel):
    """Weights & Biases."""

    project: TrackerName
    """The project that the run appears in."""
    entity: TrackerName | None = None
    """User or team that the project belongs to. Unset: the key's default."""
    group: TrackerName | None = None
    """Group of runs that belong together. Unset: none."""
    tags: Annotated[list[Tag], Field(max_length=16)] = []
    """Tags of the run."""
    mode: Literal["online", "offline"] = "online"
    """`offline` writes to `wandb/` in the run directory, for `wandb sync`; nothing is sent."""
    base_url: HttpUrl | None = None
    """A server of your own. Unset: `https://api.wandb.ai`."""
    api_key_secret_ref: SecretKeyRef | None = None
    """The API key. Unset: `WANDB_API_KEY` of `env`, or what `wandb login` stored on this machine."""


class Mlflow(SpecModel):
    """An MLflow tracking server."""

    tracking_uri: Annotated[str, Field(max_length=1024, pattern=TRACKING_URI)]
    """`https://` or `http://` address of the server, or `databricks`."""
    experiment: TrackerName
    """The experiment that the run appears in; it is created if it is not there."""
    token_secret_ref: SecretKeyRef | None = None
    """The bearer token. Unset: `MLFLOW_TRACKING_TOKEN` of `env`, or none."""


class Trackio(SpecModel):
    """Trackio: a dashboard in a Hugging Face Space, or on this machine."""

    project: TrackerName
    """The project that the run appears in."""
    space_id: Annotated[str, Field(max_length=200, pattern=SPACE)] | None = None
    """The Space, `org/name`; it needs `model.tokenSecretRef` with a token that may write. Unset: `trackio/` in the run
    directory, for `trackio show`."""


class OpenTelemetry(SpecModel):
    """A collector of OpenTelemetry traces: one for each step, with its parts."""

    endpoint: HttpUrl
    """The collector's root for OTLP over HTTP, such as `http://otel-collector:4318` (no `/v1/traces`)."""
    headers_secret_ref: SecretKeyRef | None = None
    """Headers as `name=value,name=value`. Unset: `OTEL_EXPORTER_OTLP_HEADERS` of `env`, or none."""


class Tracking(SpecModel):
    """Experiment trackers, which get the spec and the metrics. One that fails is named in the log; the run goes on."""

    wandb: Wandb | None = None
    """Weights & Biases. Unset: not reported there."""
    mlflow: Mlflow | None = None
    """An MLflow tracking server. Unset: not reported there."""
    trackio: Trackio | None = None
    """Trackio. Unset: not reported there."""
    open_telemetry: OpenTelemetry | None = None
    """OpenTelemetry traces. Unset: none, and nothing is recorded."""
