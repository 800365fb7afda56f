"""The operator's settings: one table of environment variables, read once at start.

`python -m ptoperator` overrides some of them by flags. Everything below the entry point gets a `Settings` value and
never looks at the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ptkube.resources import POD_GROUPS
from ptoperator.settings import gpu_networks, ingress, pod_defaults, prices

LOG_LEVELS = ("debug", "info", "warning", "error")
PREFIX = "POSTTRAIN_"


class SettingsError(ValueError):
    """A setting that cannot be used: names the variable, the value and what is accepted."""


@dataclass(frozen=True)
class Settings:
    """What the operator's administrator decides. The variable of a field is POSTTRAIN_<FIELD>."""

    trainer_image: str = "posttrain-trainer:0.1.0"
    """Image of jobs that name none."""
    gpu_trainer_image: str = "posttrain-trainer:0.1.0-cuda"
    """Image of jobs on GPUs that name none."""
    gpu_networks: str = ""
    """Networks of machines with several NICs for their GPUs, in the NICs' order: `rdma-0=VPC/SUBNET, …`. Empty: GPUs of
    several machines talk over the first NIC."""
    gpu_tcpxo_image: str = "us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpxo/tcpgpudmarxd-dev:v1.0.14"
    """Image of the daemon beside trainers on a3-mega; its version goes with that of the plugin on the nodes."""
    trainer_service_account: str = "default"
    """ServiceAccount of pods whose job names none. Its token is never mounted, so it has no Kubernetes rights."""
    trainer_pod: str = ""
    """Default of `spec.pod` for every job, as JSON."""
    trainer_resources: str = ""
    """Default of `spec.resources` for every job, as JSON."""
    pathways_head_nodes: str = "cpu-np"
    """Node pool for Pathways' heads: 48 CPUs and 232 GB each. XPK calls it cpu-np, and so do its clusters."""
    pathways_head_machine: str = "n2-standard-64"
    """Machine type of that pool, if the operator creates it."""
    pathways_scratch: str = ""
    """gs:// directory for what Pathways' servers exchange. Empty: `.pathways` in the job's output.uri."""
    pathways_server_image: str = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/server:latest"
    """Image of Pathways' resource manager and workers of jobs that name none."""
    pathways_proxy_image: str = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/proxy_server:latest"
    """Image of Pathways' proxy of jobs that name none."""
    progress_seconds: float = 10.0
    """While a job runs, its progress is read, and its status written, at most this often."""
    queue_seconds: float = 30.0
    """While a job waits in a queue, the reason and the jobs ahead are read this often."""
    queue_existing: bool = True
    """Whether jobs queue for existing nodes. False if an autoscaler creates nodes for every pending pod."""
    pod_groups: str = "auto"
    """Whether pods of one job are scheduled all or none by Kubernetes' PodGroups: `auto` where the API server serves
    them, `never`, or a version. Jobs with a queue are Kueue's."""
    kueue_priority_boost: int = 0
    """The most that is added to a running job's priority in Kueue while its work is unsaved; 0: nothing."""
    kueue_boost_seconds: float = 1800.0
    """The age of the newest checkpoint at which that much is added."""
    resync_seconds: float = 600.0
    """A job is reconciled this often without an event."""
    start_failure_seconds: float = 300.0
    """How long a pod may fail to start (image, secret, volume) before its job fails."""
    silent_start_seconds: float = 60.0
    """A trainer that runs this long without a readable progress document counts as running."""
    preflight_seconds: float = 1200.0
    """How long preflight may compile; then the formula's verdict counts. Its Job, which tries twice, may take twice
    as long, and start_failure_seconds for a node and the image."""
    shared_filesystem: bool = False
    """Whether the operator and the pods see the same files, as in the embedded cluster."""
    gke_project: str = ""
    """Google Cloud project of the cluster; empty: no node pools are created."""
    gke_location: str = ""
    """Region or zone of the cluster."""
    gke_cluster: str = ""
    """Name of the cluster."""
    gke_endpoint: str = ""
    """Address of the GKE API. Empty: Google's. `http://…`: a server of tests, without encryption or credentials."""
    compute_endpoint: str = ""
    """Address of the Compute API, which is asked what reservations have left. Empty: Google's. `http://…`: a server of
    tests, without encryption or credentials."""
    gke_node_service_account: str = ""
    """Google service account of the nodes; empty: the project's default one."""
    cloud_poll_seconds: float = 10.0
    """While pools are created or deleted, GKE is polled this often, for all jobs together."""
    cloud_timeout_seconds: float = 30.0
    """How long one call of the GKE API may take."""
    pool_idle_seconds: float = 300.0
    """A pool whose job is over is kept this long for the next job of its shape; 0: it is deleted at once."""
    share_pools: bool = False
    """Whether a kept pool may go to a job of another namespace."""
    capacity_backoff_seconds: float = 30.0
    """Pause before spec.capacity is tried again from its beginning; doubles each time, to ten minutes."""
    capacity_rounds: int = 0
    """After so many rounds through spec.capacity without chips the job fails; 0: never."""
    sweep_seconds: float = 60.0
    """Orphaned pools, and those whose idle time is over, are collected this often."""
    workers: int = 8
    """Jobs reconciled at the same time."""
    silence_seconds: float = 300.0
    """Not alive when the API server has not answered for this long."""
    tensorboard_servers: bool = True
    """Whether jobs with spec.tensorboard.server get one; without, no right to Deployments and Services is needed."""
    tensorboard_image: str = "tensorflow/tensorflow:2.18.0"
    """Image with TensorBoard that reads gs://, for jobs with spec.tensorboard.server."""
    tensorboard_ingress: str = ""
    """How TensorBoards are reached from outside, as JSON: `{"domain": "tb.example.com", "className": "nginx"}`, with
    `annotations` and `tlsSecret`; empty: through `ptctl workload tensorboard` only."""
    model_servers: bool = True
    """Whether models of jobs with spec.serve are served; without, no right to create what serves them is needed."""
    prices: str = ""
    """Money per chip and hour as JSON, `{"currency": "USD", "perChipHour": {"v6e": 2.7}}`; empty: no money is shown."""
    leader_namespace: str = ""
    """Namespace of the Lease by which replicas elect a leader; empty: this process is the only one."""
    http_host: str = ""
    """Address that /healthz, /readyz and /metrics listen on; empty: all of this machine's."""
    http_port: int = 8080
    """Port of /healthz, /readyz and /metrics; 0: none."""
    log_level: str = "info"
    """debug, info, warning or error."""

    @property
    def has_gke(self) -> bool:
        """Return True if the operator may create node pools."""
        return bool(self.gke_project and self.gke_location and self.gke_cluster)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """Return the defaults, overridden by the environment. Raises SettingsError."""
        given: dict[str, Any] = {}
        for field in fields(cls):
            variable = PREFIX + field.name.upper()
            if env.get(variable):
                given[field.name] = _parse(variable, env[variable], type(field.default))
        if given.get("log_level", LOG_LEVELS[0]) not in LOG_LEVELS:
            raise SettingsError(f"{PREFIX}LOG_LEVEL: '{given['log_level']}' is not one of {', '.join(LOG_LEVELS)}")
        settings = replace(cls(), **given)
        for name, check in _CHECKS.items():
            try:
                check(getattr(settings, name))
            except ValueError as error:
                raise SettingsError(f"{PREFIX}{name.upper()}: {error}") from None
        return settings


def _parse(variable: str, text: str, kind: type) -> Any:
    convert, accepted = _KINDS[kind]
    try:
        return convert(text)
    except (ValueError, KeyError):
        raise SettingsError(f"{variable}: '{text}' is not {accepted}") from None


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e9:
        raise ValueError(text)
    return value


def _pod_groups(text: str) -> None:
    accepted = ("auto", "never", *POD_GROUPS)
    if text not in accepted:
        raise ValueError(f"'{text}' is not one of {', '.join(accepted)}")


_CHECKS: dict[str, Callable[[str], object]] = {
    "gpu_networks": gpu_networks.parse,
    "pod_groups": _pod_groups,
    "prices": prices.parse,
    "tensorboard_ingress": ingress.parse,
    "trainer_pod": pod_defaults.pod,
    "trainer_resources": pod_defaults.resources,
}
_KINDS: dict[type, tuple[Callable[[str], Any], str]] = {
    str: (str, "text"),
    float: (_number, "a number of seconds"),
    int: (lambda text: int(_number(text)), "a whole number"),
    bool: (lambda text: {"true": True, "false": False}[text.lower()], "true or false"),
}
