"""Build a job from flags: XPK's names where XPK has the concept, the spec's own names for the rest.

Pure: values in, manifest out. Fields without a flag stay unset, so that the API's defaults apply; `--set` reaches
every other field.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptctl.errors import InputError
from ptctl.jobs.definition.set_field import assign_all
from ptctl.ui.command_line.choices import BUILTIN_REWARDS, GRPO_LOSSES
from ptkube.resources import Manifest

_FIELD_PATHS = {
    "workload": "metadata.name",
    "model": "model.uri",
    "tokenizer": "model.tokenizer",
    "data": "data.train.uri",
    "eval_data": "data.eval.uri",
    "steps": "training.steps",
    "batch_size": "training.batchSize",
    "sequence_length": "training.sequenceLength",
    "learning_rate": "training.optimizer.learningRate",
    "max_new_tokens": "rollout.maxNewTokens",
    "output_uri": "output.uri",
    "tpu_type": "accelerator.type",
    "num_slices": "accelerator.slices",
    "docker_image": "image",
    "queue": "queue",
    "priority": "priorityClassName",
    "service_account": "serviceAccountName",
    "max_restarts": "runPolicy.maxRestarts",
    "ttl_seconds_after_finished": "runPolicy.ttlSecondsAfterFinished",
    "termination_grace_period_seconds": "runPolicy.terminationGracePeriodSeconds",
    "elastic_slices": "pathways.elasticSlices",
    "server_image": "pathways.serverImage",
    "proxy_server_image": "pathways.proxyImage",
}
"""Flags that set a single field, and its path."""

_PATHS = ("data", "eval_data", "output_uri")
_URIS = ("model", "tokenizer", *_PATHS)
_CAPACITY_TYPES = {"on_demand": "onDemand", "spot": "spot", "flex": "flexStart"}


def apply_flags(job: Manifest, flags: Mapping[str, Any]) -> None:
    """Write the flags that were given into `job`, in place; `--set` assignments are applied last and win."""
    for flag, path in _FIELD_PATHS.items():
        if flags.get(flag) is not None:
            value = local_uri(str(flags[flag]), is_path=flag in _PATHS) if flag in _URIS else flags[flag]
            _set_field(job, path, value)
    _set_algorithm(job, flags)
    if flags.get("reward"):
        _set_field(job, "rewards", [reward(word) for word in flags["reward"]])
    capacity = _capacity_options(flags)
    if capacity:
        _set_field(job, "capacity", capacity)
    if flags.get("docker_image_pull_secret"):
        _set_field(job, "imagePullSecrets", list(flags["docker_image_pull_secret"]))
    env = [*_env_file(flags.get("env_file")), *flags.get("env", ())]
    if env:
        _set_field(job, "env", [variable(word) for word in env])
    if flags.get("command") is not None:
        _set_field(job, "runtime", {"container": {"command": ["/bin/sh", "-c", flags["command"]]}})
    if flags.get("headless"):
        _set_field(job, "pathways.enabled", True)
        _set_field(job, "pathways.headless", True)
    if flags.get("suspend"):
        _set_field(job, "runPolicy.suspend", True)
    assign_all(job, flags.get("assignments", ()))


def empty_job() -> Manifest:
    """Return the manifest that every job starts from."""
    return {"apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": {}, "spec": {}}


def local_uri(word: str, *, is_path: bool = False) -> str:
    """Return a file:// URI for a path that begins with / . or ~; leave everything else for the API to judge.

    is_path: without a scheme it can only be a path (a model could be an id of the hub).
    """
    if not word.startswith(("/", "./", "../", "~/")) and (not is_path or not word or ":" in word):
        return word
    return f"file://{Path(word).expanduser().absolute().resolve()}"


def reward(word: str) -> Manifest:
    """Return the manifest of a reward: `gsm8k`, or a Python file: `./reward.py`, `file:///rewards/reward.py:score`."""
    if word in BUILTIN_REWARDS:
        return {"builtin": word}
    path, colon, function = word.rpartition(":")
    if not colon or function.startswith("//"):
        path, function = word, ""
    if not path.endswith(".py") or (colon and not function):
        raise InputError(
            f"--reward {word!r}: accepted: one of {', '.join(BUILTIN_REWARDS)}, or a Python file as FILE.py[:FUNCTION]"
        )
    python = {"uri": local_uri(path if "://" in path or path.startswith(("/", "~")) else f"./{path}")}
    return {"python": {**python, "function": function} if function else python}


def variable(word: str) -> Manifest:
    """Return the manifest of one environment variable from `NAME=VALUE`."""
    name, separator, value = word.partition("=")
    if not separator or not name:
        raise InputError(f"--env {word!r}: accepted: NAME=VALUE")
    return {"name": name, "value": value}


def _env_file(path: str | None) -> Sequence[str]:
    if path is None:
        return ()
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--env-file {path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _set_algorithm(job: Manifest, flags: Mapping[str, Any]) -> None:
    name, group_size = flags.get("algorithm"), flags.get("group_size")
    if name in GRPO_LOSSES:
        _set_field(job, "algorithm", {"grpo": {} if name == "grpo" else {"loss": name}})
    elif name is not None:
        _set_field(job, "algorithm", {name: {}})
    if group_size is not None:
        field = (
            f"{name}.samplesPerPrompt"
            if name in ("ppo", "raft")
            else "sdpo.groupSize"
            if name == "sdpo"
            else "grpo.groupSize"
        )
        _set_field(job, f"algorithm.{field}", group_size)


def _capacity_options(flags: Mapping[str, Any]) -> list[Manifest]:
    options: list[Manifest] = (
        [{"type": "reservation", "reservation": flags["reservation"]}] if flags.get("reservation") is not None else []
    )
    return options + [{"type": kind} for flag, kind in _CAPACITY_TYPES.items() if flags.get(flag)]


def _set_field(job: Manifest, path: str, value: Any) -> None:
    keys = path.split(".")
    if keys[0] != "metadata":
        keys.insert(0, "spec")
    parent = job
    for key in keys[:-1]:
        inner = parent.get(key)
        if inner is None:
            inner = parent[key] = {}
        if not isinstance(inner, dict):
            raise InputError(f"{'.'.join(keys)}: {key!r} in the job file is not a mapping")
        parent = inner
    parent[keys[-1]] = value
