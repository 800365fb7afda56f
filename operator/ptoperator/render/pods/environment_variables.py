"""The environment of a trainer container: its process number, where to report, where to cache.

JAX reads its own JAX_* variables. If a process's number is one of Kubernetes' indices it is given as JAX_PROCESS_ID; if
it must be computed (several slices of several hosts, several containers per host), the trainer does so from the
POSTTRAIN_* indices: (slice * hosts + host) * processes_per_host + process_in_host.
"""

import json
from collections.abc import Iterable, Mapping

from ptapi.accelerators import Slice, compiler_flags
from ptapi.accelerators.table import GPU_MEMORY_SHARE
from ptapi.run_directory import PROGRESS_LOG_ENV, SANDBOXES_ENV, SERVICES_ENV, TERMINATION_LOG_ENV
from ptapi.spec import EnvVar, Service
from ptapi.spec.tracking import Tracking
from ptkube.resources import Manifest
from ptoperator.kube import names
from ptoperator.kube.labels import COMPLETION_INDEX, JOB_INDEX
from ptoperator.render.layout import Layout
from ptoperator.render.pods import gpu_fabric
from ptoperator.render.pods.beside import vllm_plugin
from ptoperator.render.pods.command import foreign_env

TERMINATION_LOG = "/dev/termination-log"
SLICE_INDEX = "POSTTRAIN_SLICE_INDEX"
HOST_INDEX = "POSTTRAIN_HOST_INDEX"
HOSTS_PER_SLICE = "POSTTRAIN_HOSTS_PER_SLICE"
PROCESSES_PER_HOST = "POSTTRAIN_PROCESSES_PER_HOST"
PROCESS_IN_HOST = "POSTTRAIN_PROCESS_IN_HOST"
SLICE_ADDRESS = "POSTTRAIN_SLICE_ADDRESS"
"""`host:port` of a slice's first host, where JAX's coordinator listens if the slice is the first that trains."""

SAMPLERS = "POSTTRAIN_SAMPLERS"
"""Where the trainer reaches samplers with pods of their own: `host:port`, comma-separated, in their order."""
SAMPLER_TOKEN = "POSTTRAIN_SAMPLER_TOKEN"
"""What trainer and samplers of one job show each other."""
SAMPLER_INDEX = "POSTTRAIN_SAMPLER_INDEX"
SAMPLER_POD = "POSTTRAIN_SAMPLER_POD"
"""The uid of a sampler's pod, by which vLLM there names the model."""
_QUIET_VLLM = {"name": "VLLM_NO_USAGE_STATS", "value": "1"}
TOKEN_KEY = "token"
"""Key of that token in the job's Secret."""

_COMPILE_CACHE = ".compile-cache"
_NCCL = {"NCCL_DEBUG": "WARN"}
"""So that its errors are in the log, which says why a run failed (`failures.log_excerpt`)."""


def container_env(layout: Layout, process_in_host: int) -> list[Manifest]:
    """Return the trainer's environment. Variables of the job win."""
    ours = [
        *_everywhere(),
        value("JAX_COMPILATION_CACHE_DIR", _cache_dir(layout)),
        *_devices(layout),
        *_compiler_flags(layout),
        *([value(PROGRESS_LOG_ENV, "true")] if layout.is_progress_in_log else []),
        *_indices(layout, process_in_host),
        *_slice_address(layout),
        *_distributed(layout),
        *_multislice(layout),
        *_token(layout),
        *_tracker_keys(layout),
        *_samplers(layout),
        *_services(layout),
        *_sandboxes(layout),
        *_foreign(layout),
    ]
    return _with_users(layout, ours)


def sampler_env(layout: Layout) -> list[Manifest]:
    """Return a sampler's environment; layout: with its own chips."""
    ours = [
        *_everywhere(),
        value("JAX_COMPILATION_CACHE_DIR", _cache_dir(layout)),
        *_devices(layout),
        *_init_args(compiler_flags.flags(layout.accelerator.generation), layout.accelerator),
        from_label(SAMPLER_INDEX, JOB_INDEX),
        *_sampler_processes(layout),
        *_token(layout),
        _sampler_token(layout),
    ]
    return _with_users(layout, ours)


def vllm_env(layout: Layout) -> list[Manifest]:
    """Return the environment of a sampler that is vLLM, whose image does not know the user that it runs as."""
    full, adapters = "VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
    is_full, has_plugin = layout.job.spec.training.lora is None, vllm_plugin.is_needed(layout)
    ours = [
        *_anywhere(),
        _QUIET_VLLM,
        value(full, "1") if is_full else value(adapters, "True"),
        *([value("PYTHONPATH", vllm_plugin.PATH)] if has_plugin else []),
        from_field(SAMPLER_POD, "metadata.uid"),
        *_vllm_hosts(layout),
        *_token(layout),
        _secret("VLLM_API_KEY", layout.sampler_secret, TOKEN_KEY),
    ]
    return _with_users(layout, ours)


def service_env(layout: Layout, service: Service) -> list[Manifest]:
    """Return a service's environment. Its own variables win; the hub's token is for who reads a model there."""
    if service.model is None:
        return _under(_anywhere(), service.env)
    token = _token(layout) if service.model.uri.startswith("hf://") else []
    return _under([*_anywhere(), _QUIET_VLLM, *token], service.env)


def _anywhere() -> list[Manifest]:
    """Return the variables of a program whose image does not know the user that it runs as."""
    return [
        value("PYTHONUNBUFFERED", "1"),
        value("HOME", "/tmp"),
        value("USER", "posttrain"),
    ]


def _vllm_hosts(layout: Layout) -> list[Manifest]:
    """Return how the hosts of one vLLM server join and speak to each other; nothing for one host."""
    if layout.hosts == 1:
        return []
    return [
        from_label(SAMPLER_INDEX, JOB_INDEX),
        from_annotation(HOST_INDEX, COMPLETION_INDEX),
        value(HOSTS_PER_SLICE, str(layout.hosts)),
        from_field("VLLM_HOST_IP", "status.podIP"),
        *(value(name, text) for name, text in (_NCCL | gpu_fabric.environment(layout)).items()),
    ]


def cpu_env(layout: Layout) -> list[Manifest]:
    """Return the environment of preflight and staging: no chips, no peers, no program cache (not readable here)."""
    return _with_users(layout, [*_everywhere(), *_token(layout)])


def controller_env(layout: Layout) -> list[Manifest]:
    """Return the environment of a Pathways run's one trainer: no cache (the proxy keeps programs), no peers."""
    ours = [
        *_everywhere(),
        value("JAX_PLATFORMS", "proxy"),
        value("JAX_BACKEND_TARGET", f"grpc://localhost:{names.PATHWAYS_PROXY_PORT}"),
        value("IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS", "true"),
        value("XCLOUD_ENVIRONMENT", "GCP"),
        # Checkpoints go from the workers to the bucket, not through the head.
        value("ENABLE_PATHWAYS_PERSISTENCE", "1"),
        *_token(layout),
        *_tracker_keys(layout),
        *_sandboxes(layout),
        *_foreign(layout),
    ]
    return _with_users(layout, ours)


def _with_users(layout: Layout, ours: list[Manifest]) -> list[Manifest]:
    """Add the job's variables. They win; flags of the compiler (the last of a name counts) and PYTHONPATH join."""
    return _under(ours, layout.job.spec.env)


def _under(ours: list[Manifest], stated: Iterable[EnvVar]) -> list[Manifest]:
    chosen = {variable.name: _user(variable) for variable in stated}
    for flags in ours:
        name = flags["name"]
        if name in ("XLA_FLAGS", compiler_flags.LIBTPU_INIT_ARGS) and chosen.get(name, {}).get("value"):
            chosen[name] = value(name, f"{flags['value']} {chosen[name]['value']}")
        if name == "PYTHONPATH" and chosen.get(name, {}).get("value"):
            chosen[name] = value(name, f"{flags['value']}:{chosen[name]['value']}")
    kept = [variable for variable in ours if variable["name"] not in chosen]
    return kept + list(chosen.values())


def _everywhere() -> list[Manifest]:
    """Return the variables of every program of ours."""
    return [value(TERMINATION_LOG_ENV, TERMINATION_LOG), value("PYTHONUNBUFFERED", "1")]


def _devices(layout: Layout) -> list[Manifest]:
    if layout.accelerator.is_gpu:
        ours = {"JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_MEM_FRACTION": str(GPU_MEMORY_SHARE), **_NCCL}
        return [value(name, text) for name, text in (ours | gpu_fabric.environment(layout)).items()]
    if not layout.accelerator.is_cpu:
        return [value("JAX_PLATFORMS", "tpu,cpu")]
    flag = f"--xla_force_host_platform_device_count={layout.accelerator.devices}"
    return [value("JAX_PLATFORMS", "cpu"), value("XLA_FLAGS", flag)]


def _compiler_flags(layout: Layout) -> list[Manifest]:
    return _init_args(compiler_flags.of_job(layout.job.spec), layout.accelerator)


def _init_args(chosen: Mapping[str, str], chips: Slice) -> list[Manifest]:
    flags = compiler_flags.init_args(chosen)
    return [value(compiler_flags.variable(chips.platform), flags)] if flags else []


def _indices(layout: Layout, process_in_host: int) -> list[Manifest]:
    indices = [
        from_label(SLICE_INDEX, JOB_INDEX),
        from_annotation(HOST_INDEX, COMPLETION_INDEX),
        value(HOSTS_PER_SLICE, str(layout.hosts)),
    ]
    if layout.processes_per_host > 1:
        indices.append(value(PROCESSES_PER_HOST, str(layout.processes_per_host)))
        indices.append(value(PROCESS_IN_HOST, str(process_in_host)))
    return indices


def _slice_address(layout: Layout) -> list[Manifest]:
    if not layout.is_supervised:
        return []
    host = names.slice_host(layout.jobset, f"$({SLICE_INDEX})")
    return [value(SLICE_ADDRESS, f"{host}:{names.COORDINATOR_PORT}")]


def _distributed(layout: Layout) -> list[Manifest]:
    if layout.processes == 1:
        return []
    coordinator = f"{names.first_host(layout.jobset)}:{names.COORDINATOR_PORT}"
    shared = [value("JAX_COORDINATOR_ADDRESS", coordinator), value("JAX_NUM_PROCESSES", str(layout.processes))]
    if layout.computes_process_id:
        return shared
    if layout.slices > 1:
        return [*shared, from_label("JAX_PROCESS_ID", JOB_INDEX)]
    return [*shared, from_annotation("JAX_PROCESS_ID", COMPLETION_INDEX)]


def _sampler_processes(layout: Layout) -> list[Manifest]:
    """Return how the processes of a sampler of several hosts join: its first pod's name follows from its index."""
    if layout.hosts == 1:
        return []
    host = names.role_host(layout.jobset, names.SAMPLER, f"$({SAMPLER_INDEX})")
    return [
        value("JAX_COORDINATOR_ADDRESS", f"{host}:{names.COORDINATOR_PORT}"),
        value("JAX_NUM_PROCESSES", str(layout.hosts)),
        from_annotation("JAX_PROCESS_ID", COMPLETION_INDEX),
        value(HOSTS_PER_SLICE, str(layout.hosts)),
    ]


def _multislice(layout: Layout) -> list[Manifest]:
    """Return what libtpu needs to join slices over the data-centre network; within a slice GKE injects it."""
    if layout.accelerator.platform != "tpu" or layout.slices == 1:
        return []
    return [
        value("MEGASCALE_NUM_SLICES", str(layout.slices)),
        from_label("MEGASCALE_SLICE_ID", JOB_INDEX),
        value("MEGASCALE_COORDINATOR_ADDRESS", names.first_host(layout.jobset)),
    ]


def _token(layout: Layout) -> list[Manifest]:
    secret = layout.job.spec.model.token_secret_ref
    return [_secret("HF_TOKEN", secret.name, secret.key)] if secret else []


def _samplers(layout: Layout) -> list[Manifest]:
    if not layout.samplers:
        return []
    return [value(SAMPLERS, ",".join(layout.sampler_addresses)), _sampler_token(layout)]


def _services(layout: Layout) -> list[Manifest]:
    urls = layout.service_urls
    return [value(SERVICES_ENV, json.dumps(urls))] if urls else []


def _sandboxes(layout: Layout) -> list[Manifest]:
    return [value(SANDBOXES_ENV, layout.sandbox_address)] if layout.has_sandboxes else []


def _sampler_token(layout: Layout) -> Manifest:
    return _secret(SAMPLER_TOKEN, layout.sampler_secret, TOKEN_KEY)


def _tracker_keys(layout: Layout) -> list[Manifest]:
    tracking = layout.job.spec.tracking or Tracking()
    wandb, mlflow, traces = tracking.wandb, tracking.mlflow, tracking.open_telemetry
    of = {
        "WANDB_API_KEY": wandb and wandb.api_key_secret_ref,
        "MLFLOW_TRACKING_TOKEN": mlflow and mlflow.token_secret_ref,
        "OTEL_EXPORTER_OTLP_HEADERS": traces and traces.headers_secret_ref,
    }
    return [_secret(name, secret.name, secret.key) for name, secret in of.items() if secret]


def _foreign(layout: Layout) -> list[Manifest]:
    return [value(name, text) for name, text in foreign_env(layout).items()]


def _cache_dir(layout: Layout) -> str:
    """Return a directory beside the runs, so that a restart, or a job of the same shape, compiles nothing again."""
    uri = layout.job.spec.output.uri.rstrip("/")
    return f"{uri.removeprefix('file://')}/{_COMPILE_CACHE}"


def stated_env(variables: Iterable[EnvVar]) -> list[Manifest]:
    """Return a job's own variables, as a container has them."""
    return [_user(variable) for variable in variables]


def _user(variable: EnvVar) -> Manifest:
    if variable.value_from is None:
        return value(variable.name, variable.value or "")
    secret = variable.value_from.secret_key_ref
    return _secret(variable.name, secret.name, secret.key)


def value(name: str, text: str) -> Manifest:
    """Return a variable with a literal value."""
    return {"name": name, "value": text}


def from_label(name: str, key: str) -> Manifest:
    """Return a variable with the value of one of the pod's labels."""
    return from_field(name, f"metadata.labels['{key}']")


def from_field(name: str, path: str) -> Manifest:
    """Return a variable with the value of one of the pod's fields."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def from_annotation(name: str, key: str) -> Manifest:
    """Return a variable with the value of one of the pod's annotations."""
    return from_field(name, f"metadata.annotations['{key}']")


def _secret(name: str, secret: str, key: str) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
