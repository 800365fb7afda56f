"""Processes and devices: what must happen before and right after jax wakes up.

The environment is read here and nowhere else (but for GLIBC_TUNABLES, by `large_pages`, before all this):

    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID   set by the operator for several processes
    POSTTRAIN_SLICE_INDEX, POSTTRAIN_HOST_INDEX,                 instead of JAX_PROCESS_ID, where it is not one of
    POSTTRAIN_HOSTS_PER_SLICE, POSTTRAIN_PROCESSES_PER_HOST,     Kubernetes' own indices
    POSTTRAIN_PROCESS_IN_HOST
    JAX_COMPILATION_CACHE_DIR                                    where compiled steps are kept between runs
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS                   what compiles sooner is not kept (0.2 s)
    XDG_CACHE_HOME                                               else the cache is below it (~/.cache)
    LIBTPU_INIT_ARGS                                             respected, after what a generation needs
                                                                 (`compiler_flags`)
    XLA_FLAGS, JAX_PLATFORMS                                     respected; `cpu-N` adds to the first; a platform
                                                                 `proxy` is Pathways: one process sees all chips
    HOSTNAME                                                     the pod's name, for whoever finds it writing
    POSTTRAIN_LEASE_SECONDS                                      a silent process keeps its run directory so long (30 s)
    the one that spec.rewards[].judge.apiKeyEnv names            the key of a judge's endpoint (`secret`)
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from ptapi.accelerators.compiler_flags import init_args
from pttrainer.errors import ConfigError

DEVICE_COUNT_FLAG = "--xla_force_host_platform_device_count"
LIBTPU_FLAGS = "LIBTPU_INIT_ARGS"
LONGEST_TEXT = 4096
_LEADER_SAYS, _DAY_MS = "posttrain/leader-says", 86_400_000


def prepare_environment(accelerator: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Gives `cpu-N` its N virtual devices, and a TPU's compiler its flags. Must run before jax is first imported."""
    virtual = re.fullmatch(r"cpu-([1-9][0-9]*)", accelerator)
    if virtual is None:
        flags = init_args(accelerator, environ.get(LIBTPU_FLAGS, ""))
        if flags:
            environ[LIBTPU_FLAGS] = flags
        return
    environ["JAX_PLATFORMS"] = "cpu"
    others = [flag for flag in environ.get("XLA_FLAGS", "").split() if not flag.startswith(DEVICE_COUNT_FLAG)]
    environ["XLA_FLAGS"] = " ".join([*others, f"{DEVICE_COUNT_FLAG}={virtual[1]}"])


def cache_directory(environ: MutableMapping[str, str] = os.environ) -> Path:
    """Where posttrain keeps what can be made again: compiled steps, downloaded models."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posttrain"


def secret(name: str, field: str, environ: MutableMapping[str, str] = os.environ) -> str:
    """The value of the variable that the job names in `field`; raises ConfigError where it is not set."""
    value = environ.get(name, "").strip()
    if not value:
        raise ConfigError(
            f"{field}: {name}: no such environment variable; hint: spec.env: [{{name: {name}, valueFrom: "
            "{secretKeyRef: …}}], or set it where you run the trainer"
        )
    return value


def lease_limit_s(environ: MutableMapping[str, str] = os.environ) -> float:
    """How long a process that is not heard of keeps the run directory; raises ConfigError."""
    text = environ.get("POSTTRAIN_LEASE_SECONDS", "30")
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or float(text) < 1:
        raise ConfigError(f"environment: POSTTRAIN_LEASE_SECONDS: {text}: accepted: seconds, at least 1")
    return float(text)


def pod(environ: MutableMapping[str, str] = os.environ) -> str:
    """The name of the pod, in one."""
    return environ.get("HOSTNAME") or socket.gethostname()


def initialize(environ: MutableMapping[str, str] = os.environ) -> None:
    """Joins the other processes, if there are any, and turns on the cache of compiled steps."""
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
    jax.distributed.initialize(address, num_processes=processes, process_id=rank)


def processes(environ: MutableMapping[str, str] = os.environ) -> int:
    """How many processes the run has, before they have joined."""
    return int(environ.get("JAX_NUM_PROCESSES", "1")) if environ.get("JAX_COORDINATOR_ADDRESS") else 1


def is_pathways(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Whether Pathways' proxy stands between this process and the chips."""
    return "proxy" in environ.get("JAX_PLATFORMS", "").split(",")


def _join_pathways() -> None:
    """Registers Pathways' backend; must run before any device is used. Programs are compiled, and kept, on its side:
    there is no cache of compiled steps here, and there are no other processes to join."""
    try:
        import pathwaysutils
    except ImportError as error:
        raise ConfigError(
            f"environment: JAX_PLATFORMS has proxy (Pathways), and pathwaysutils cannot be imported ({error}); "
            "hint: use the TPU image, or pip install 'posttrain[trainer-tpu]'"
        ) from error
    pathwaysutils.initialize()


def process_id(environ: MutableMapping[str, str]) -> int:
    """The number of this process: given, or counted over slices, hosts of a slice and processes of a host."""
    if "JAX_PROCESS_ID" in environ:
        return int(environ["JAX_PROCESS_ID"])
    host = int(environ["POSTTRAIN_SLICE_INDEX"]) * int(environ["POSTTRAIN_HOSTS_PER_SLICE"])
    host += int(environ["POSTTRAIN_HOST_INDEX"])
    per_host = int(environ.get("POSTTRAIN_PROCESSES_PER_HOST", "1"))
    return host * per_host + int(environ.get("POSTTRAIN_PROCESS_IN_HOST", "0"))


def is_leader() -> bool:
    """One process writes the run directory."""
    import jax

    return bool(jax.process_index() == 0)


def from_leader(text: str) -> str:
    """The leader's text (its first `LONGEST_TEXT` bytes), on every process. All call it together."""
    import jax

    if jax.process_count() == 1:
        return text
    import numpy as np
    from jax.experimental import multihost_utils

    said = text.encode()[:LONGEST_TEXT].ljust(LONGEST_TEXT, b"\0")
    told = np.asarray(multihost_utils.broadcast_one_to_all(np.frombuffer(said, np.uint8)))
    return told.astype(np.uint8).tobytes().rstrip(b"\0").decode(errors="ignore")


def leader_says(word: str | None) -> str:
    """The leader's word, on every process; word: given on the leader alone, and not empty. However long it takes: a
    collective would give up."""
    import jax

    if jax.process_count() == 1:
        return word or ""
    from jax._src.distributed import global_state  # the store by which processes found each other has no public name

    store: Any = global_state.client
    if word is None:
        return str(store.blocking_key_value_get(_LEADER_SAYS, _DAY_MS))
    store.key_value_set(_LEADER_SAYS, word)
    return word


def any_process(flag: bool) -> bool:
    """True everywhere if it is true anywhere: a signal reaches processes at different times."""
    import jax

    if jax.process_count() == 1:
        return flag
    import numpy as np
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))
