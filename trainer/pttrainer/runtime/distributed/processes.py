"""Processes and devices: what must happen just before and just after jax is imported.

The environment is read here and nowhere else (except GLIBC_TUNABLES, which `large_pages` reads earlier):

JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID   set by the operator for several processes
    POSTTRAIN_SLICE_INDEX, POSTTRAIN_HOST_INDEX,                 replace JAX_PROCESS_ID when it is not one of
    POSTTRAIN_HOSTS_PER_SLICE, POSTTRAIN_PROCESSES_PER_HOST,     Kubernetes' own indices
    POSTTRAIN_PROCESS_IN_HOST
    JAX_COMPILATION_CACHE_DIR                                    where compiled steps are kept between runs
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS                   programs that compile faster are not cached (0.2 s)
    XDG_CACHE_HOME                                               parent of the default cache (~/.cache)
    LIBTPU_INIT_ARGS                                             respected, after the flags of generation and job
                                                                 (`compiler_flags`)
    XLA_PYTHON_CLIENT_MEM_FRACTION                               share of a GPU's memory for JAX (0.9)
    XLA_FLAGS, JAX_PLATFORMS                                     respected; `cpu-N` and GPUs add to the first; platform
                                                                 `proxy` is Pathways: one process sees all chips
    NPROC                                                        threads of XLA on CPUs; set for `cpu-N`
    HOSTNAME                                                     the pod's name, shown to others that want to write
    POSTTRAIN_PROGRESS_IN_LOG                                    `true`: progress.json is repeated in the log
    POSTTRAIN_LEASE_SECONDS                                      seconds that a silent process keeps its directory (30),
                                                                 and a silent supervisor its place (`slices`)
    POSTTRAIN_SERVICES                                           where the job's services are, as JSON (`services`)
    POSTTRAIN_SLICE_ADDRESS                                      `host:port` of this slice's first host, for JAX
    POSTTRAIN_SLICE_PATIENCE_SECONDS                             seconds that a run waits for all slices at first (300)
    POSTTRAIN_GENERATION, POSTTRAIN_SUPERVISOR_PID               set by the supervisor for its trainer
    the variable that spec.rewards[].judge.apiKeyEnv names       the API key of a judge's endpoint (`secret`)
"""

import os
import re
import socket
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from ptapi.accelerators import resolve
from ptapi.accelerators.compiler_flags import init_args, variable
from ptapi.accelerators.table import GPU_MEMORY_SHARE
from ptapi.run_directory import PROGRESS_LOG_ENV, SANDBOXES_ENV, SERVICES_ENV
from pttrainer.errors import ConfigError

DEVICE_COUNT_FLAG = "--xla_force_host_platform_device_count"
_THREADS_A_DEVICE = 4
"""XLA gives virtual devices one thread each, and one that waits for another device keeps its thread.

Devices begin collectives that do not depend on each other in any order. So a program with two of them could wait for
itself forever, and XLA ended the process after 40 seconds: dpo with held-out pairs, its step from the compile cache.
"""
MAX_TEXT_BYTES = 4096
GENERATION, SUPERVISOR = "POSTTRAIN_GENERATION", "POSTTRAIN_SUPERVISOR_PID"
DAY_MS = 86_400_000
"""Longest wait for what has no limit of its own."""
_LEADER_KEY = "posttrain/leader-says"


def prepare_environment(
    accelerator: str, flags: Mapping[str, str], environ: MutableMapping[str, str] = os.environ
) -> None:
    """Create the N virtual devices of `cpu-N`, or set the compiler flags of the chips (`compiler_flags.of_job`).

    Must run before jax is first imported.
    """
    virtual = re.fullmatch(r"cpu-([1-9][0-9]*)", accelerator)
    if virtual is None:
        platform = resolve(accelerator).platform
        name = variable(platform)
        joined = init_args(flags, environ.get(name, ""))
        if joined:
            environ[name] = joined
        if platform == "gpu":
            environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", str(GPU_MEMORY_SHARE))
        return
    environ["JAX_PLATFORMS"] = "cpu"
    others = [flag for flag in environ.get("XLA_FLAGS", "").split() if not flag.startswith(DEVICE_COUNT_FLAG)]
    environ["XLA_FLAGS"] = " ".join([*others, f"{DEVICE_COUNT_FLAG}={virtual[1]}"])
    if int(virtual[1]) > 1:
        environ.setdefault("NPROC", str(_THREADS_A_DEVICE * int(virtual[1])))


def cache_directory(environ: MutableMapping[str, str] = os.environ) -> Path:
    """Return the directory for everything that can be recreated: compiled steps, downloaded models."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posttrain"


def secret(name: str, field: str, environ: MutableMapping[str, str] = os.environ) -> str:
    """Return the value of the variable that the job names in `field`; raise ConfigError if it is not set."""
    value = environ.get(name, "").strip()
    if not value:
        raise ConfigError(
            f"{field}: {name}: no such environment variable; hint: spec.env: [{{name: {name}, valueFrom: "
            "{secretKeyRef: …}}], or set it where you run the trainer"
        )
    return value


def sandboxes(environ: MutableMapping[str, str] = os.environ) -> str:
    """Return where the cluster's sandboxes for code rewards and Python tools are; empty if there are none."""
    return environ.get(SANDBOXES_ENV, "").strip()


def services(environ: MutableMapping[str, str] = os.environ) -> str:
    """Return where the job's services are, as JSON (`services.addresses`); empty if there are none."""
    return environ.get(SERVICES_ENV, "").strip()


def lease_limit_s(environ: MutableMapping[str, str] = os.environ) -> float:
    """Return how long a silent process keeps the run directory, in seconds; raise ConfigError if invalid."""
    return _seconds("POSTTRAIN_LEASE_SECONDS", "30", environ)


def _seconds(name: str, default: str, environ: Mapping[str, str]) -> float:
    text = environ.get(name, default)
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or float(text) < 1:
        raise ConfigError(f"environment: {name}: {text}: accepted: seconds, at least 1")
    return float(text)


class SliceMember(NamedTuple):
    """A process of a slice: its numbers, the processes of a slice, and where its slice's first host is reached."""

    slice_index: int
    process: int
    per_slice: int
    address: str


def slice_member(environ: Mapping[str, str] = os.environ) -> SliceMember | None:
    """Return which process of which slice this container supervises; None for a trainer, or outside a cluster."""
    if "POSTTRAIN_SLICE_INDEX" not in environ or GENERATION in environ:
        return None
    per_host = int(environ.get("POSTTRAIN_PROCESSES_PER_HOST", "1"))
    process = int(environ["POSTTRAIN_HOST_INDEX"]) * per_host + int(environ.get("POSTTRAIN_PROCESS_IN_HOST", "0"))
    per_slice = int(environ["POSTTRAIN_HOSTS_PER_SLICE"]) * per_host
    return SliceMember(
        int(environ["POSTTRAIN_SLICE_INDEX"]), process, per_slice, environ.get("POSTTRAIN_SLICE_ADDRESS", "")
    )


def slice_patience_s(environ: Mapping[str, str] = os.environ) -> float:
    """Return how long a run waits for all slices, and returned slices for a quiet run; raise ConfigError if invalid."""
    return _seconds("POSTTRAIN_SLICE_PATIENCE_SECONDS", "300", environ)


def generation(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of the generation that a supervisor started this trainer in; None without one."""
    return int(environ[GENERATION]) if GENERATION in environ else None


def supervisor(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the process number of this trainer's supervisor; None without one."""
    return int(environ[SUPERVISOR]) if SUPERVISOR in environ else None


def is_progress_in_log(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Return True if whoever started this process cannot read the run directory, and reads the log instead."""
    return environ.get(PROGRESS_LOG_ENV) == "true"


def pod(environ: MutableMapping[str, str] = os.environ) -> str:
    """Return the name of this pod, or of this host outside Kubernetes."""
    return environ.get("HOSTNAME") or socket.gethostname()


def initialize(environ: MutableMapping[str, str] = os.environ) -> None:
    """Join the other processes, if there are any, and turn on the compilation cache."""
    if is_pathways(environ):
        _join_pathways()
        return
    import jax

    jax.config.update(
        "jax_compilation_cache_dir", environ.get("JAX_COMPILATION_CACHE_DIR") or str(cache_directory(environ) / "xla")
    )
    kept_from_s = float(environ.get("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", 0.2))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", kept_from_s)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    address = environ.get("JAX_COORDINATOR_ADDRESS")
    if not address:
        return
    try:
        processes, rank = int(environ["JAX_NUM_PROCESSES"]), process_id(environ)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"environment: JAX_COORDINATOR_ADDRESS is {address}, so JAX_NUM_PROCESSES must be a number, and so must "
            "JAX_PROCESS_ID or the POSTTRAIN_* indices that it follows from"
        ) from error
    # JAX's preemption service would take SIGTERM for itself: `StopRequest` would not hear of it, and nothing be saved.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(address, num_processes=processes, process_id=rank)


def processes(environ: MutableMapping[str, str] = os.environ) -> int:
    """Return the number of processes of the run, before they have joined."""
    return int(environ.get("JAX_NUM_PROCESSES", "1")) if environ.get("JAX_COORDINATOR_ADDRESS") else 1


def coordinator_host(environ: Mapping[str, str] = os.environ) -> str:
    """Return the name or address of the first process's host, of a run of several processes."""
    return environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")[0]


def is_pathways(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Return True if this process reaches its chips through Pathways' proxy."""
    return "proxy" in environ.get("JAX_PLATFORMS", "").split(",")


def _join_pathways() -> None:
    """Register Pathways' backend; must run before any device is used.

    Pathways compiles and caches programs on its side: there is no compilation cache here, and no other process to
    join.
    """
    try:
        import pathwaysutils
    except ImportError as error:
        raise ConfigError(
            f"environment: JAX_PLATFORMS has proxy (Pathways), and pathwaysutils cannot be imported ({error}); "
            "hint: use the TPU image, or pip install 'posttrain[trainer-tpu]'"
        ) from error
    pathwaysutils.initialize()


def process_id(environ: MutableMapping[str, str]) -> int:
    """Return this process's index: set directly, or derived from slice, host and process-in-host indices."""
    if "JAX_PROCESS_ID" in environ:
        return int(environ["JAX_PROCESS_ID"])
    host = int(environ["POSTTRAIN_SLICE_INDEX"]) * int(environ["POSTTRAIN_HOSTS_PER_SLICE"])
    host += int(environ["POSTTRAIN_HOST_INDEX"])
    per_host = int(environ.get("POSTTRAIN_PROCESSES_PER_HOST", "1"))
    return host * per_host + int(environ.get("POSTTRAIN_PROCESS_IN_HOST", "0"))


def is_leader() -> bool:
    """Return True on the one process that writes the run directory."""
    import jax

    return bool(jax.process_index() == 0)


def from_leader(text: str) -> str:
    """Return the leader's text (its first `MAX_TEXT_BYTES` bytes) on every process. All must call it together."""
    import jax

    if jax.process_count() == 1:
        return text
    import numpy as np
    from jax.experimental import multihost_utils

    sent = text.encode()[:MAX_TEXT_BYTES].ljust(MAX_TEXT_BYTES, b"\0")
    received = np.asarray(multihost_utils.broadcast_one_to_all(np.frombuffer(sent, np.uint8)))
    return received.astype(np.uint8).tobytes().rstrip(b"\0").decode(errors="ignore")


def wait_for_leader(word: str | None) -> str:
    """Return the leader's word on every process, however long it takes to arrive.

    Only the leader passes `word`, which must not be empty. A collective would time out.
    """
    import jax

    if jax.process_count() == 1:
        return word or ""
    if word is None:
        return str(store().blocking_key_value_get(_LEADER_KEY, DAY_MS))
    store().key_value_set(_LEADER_KEY, word)
    return word


def store() -> Any:
    """Return the store by which the processes of a run found each other; JAX has no public name for it."""
    from jax._src.distributed import global_state

    return global_state.client


def any_process(flag: bool) -> bool:
    """Return True everywhere if `flag` is true anywhere: a signal reaches processes at different times."""
    import jax

    if jax.process_count() == 1:
        return flag
    import numpy as np
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))
