"""Command lines that start TRL or Axolotl, as jobs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ptctl.errors import InputError
from ptctl.importers.command_lines.flags import put_environment
from ptctl.importers.command_lines.shell import Command, as_text
from ptctl.importers.draft import Draft
from ptctl.importers.huggingface import axolotl, settings_files, trl
from ptctl.importers.huggingface.launch import Launch, gpus, launch_of, settings
from ptctl.importers.huggingface.words import Words

_PROFILES = ("fsdp1", "fsdp2", "zero1", "zero2", "zero3", "multi_gpu", "single_gpu")
"""Settings of accelerate that TRL brings along."""
_PROFILE_GPUS = 8
_GPU_VARIABLES = ("CUDA_", "NCCL_", "TORCH", "PYTORCH_", "ACCELERATE_", "OMP_", "TOKENIZERS_", "MASTER_", "RANK",
                  "WORLD_SIZE", "LOCAL_RANK", "AXOLOTL_", "VLLM_", "BNB_", "DS_", "HF_HUB_ENABLE", "HF_HOME",
                  "HF_DATASETS", "TRANSFORMERS_", "GLOO_", "NVTE_", "XDG_", "PATH", "PYTHON")  # fmt: skip


def is_submit(command: Command) -> bool:
    """Return True for a command that starts a trainer."""
    return launch_of(command) is not None


def draft_of(command: Command, folder: Path) -> Draft:
    """Return the job of a command. Files that it names are looked for in `folder`."""
    launch = launch_of(command)
    assert launch is not None
    plain, flags = settings(launch.words, launch.target)
    environment = dict(command.environment)
    if launch.target == "axolotl":
        return _of_axolotl(launch, plain, flags, environment, folder)
    source = f"`{launch.target}`"
    if plain:
        raise InputError(f"{source}: {' '.join(map(as_text, plain))}: accepted: flags, such as --model_name_or_path")
    values = _with_file(flags, source, folder)
    environment |= {
        name: str(value) for name, value in Words({"env": values.pop("env", None)}, {}).mapping("env").items()
    }
    accelerate = _accelerate(launch.options, values, folder)
    draft = trl.draft_of(launch, values, gpus(accelerate, environment), environment)
    _note_rest(draft, launch, accelerate, environment)
    return draft


def _with_file(flags: dict[str, Any], source: str, folder: Path) -> dict[str, Any]:
    """Return the flags over the settings of --config."""
    path = flags.pop("config", None)
    file = settings_files.read_file(folder, str(path), source) if path is not None else {}
    return {**file, **flags}


def _of_axolotl(
    launch: Launch, plain: list[str], flags: dict[str, Any], environment: dict[str, str], folder: Path
) -> Draft:
    if len(plain) != 1:
        raise InputError(f"`axolotl train`: {' '.join(plain) or 'no file'}; accepted: one file of settings")
    options = {**launch.options, **{name: flags.pop(name) for name in list(flags) if name in _LAUNCH_WORDS}}
    values = {**settings_files.read_file(folder, plain[0], "`axolotl train`"), **flags}
    count = gpus(_accelerate(options, {}, folder), environment)
    draft = axolotl.draft_of(values, f"`axolotl train {plain[0]}`", count, environment)
    _note_rest(draft, launch, options, environment)
    return draft


_LAUNCH_WORDS = (
    "num_processes",
    "nproc_per_node",
    "nnodes",
    "launcher",
    "num_machines",
    "sweep",
    "cloud",
    "main_process_port",
)


def _accelerate(options: dict[str, Any], values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a launcher's options, with those that TRL takes for it and those of its file."""
    own: dict[str, Any] = {
        name: values.pop(name) for name in ("num_processes", "num_machines", "accelerate_config") if name in values
    }
    options = {**options, **own}
    file = options.get("accelerate_config") or options.get("config_file")
    if file in _PROFILES:
        return {"num_processes": _PROFILE_GPUS, **options}
    if file and (folder / str(file)).is_file():
        known = settings_files.read_file(folder, str(file), "accelerate")
        return {**({"num_processes": known["num_processes"]} if "num_processes" in known else {}), **options}
    return options


def _note_rest(draft: Draft, launch: Launch, options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    for name, value in options.items():
        shown = "" if value == "true" else f" {as_text(str(value))}"
        counted = "counted in batchSize" if name in ("num_processes", "nproc_per_node", "num_gpus", "nnodes") else ""
        draft.note(f"--{name}{shown}", counted or "GPUs are not started here: `accelerator.type` says how many chips")
    kept = {}
    for name, value in environment.items():
        if name.startswith(_GPU_VARIABLES):
            draft.note(f"{name}={as_text(value)}", "a variable of GPUs, PyTorch or their caches")
        elif name not in ("WANDB_PROJECT", "WANDB_ENTITY") or draft.get("spec.tracking.wandb") is None:
            kept[name] = value
    put_environment(draft, kept)
