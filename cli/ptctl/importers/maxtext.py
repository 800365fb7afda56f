"""MaxText's `train_rl` and `train_sft` with their `key=value` arguments, as a job of `runtime: maxtext`.

The operator writes every number of the spec as an argument again. So what a command leaves out is taken from MaxText's
own files (`maxtext_defaults`). Arguments without a field of the spec stay arguments.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ptapi import accelerators
from ptctl.errors import InputError
from ptctl.importers import maxtext_defaults
from ptctl.importers.command_lines.flags import put_environment
from ptctl.importers.command_lines.shell import Command, as_text, parse, unknown
from ptctl.importers.draft import Draft
from ptctl.importers.secrets import is_secret, variable_of, without_secrets

_MODULES = {
    "rl": r"(src[./])?(maxtext[./]trainers[./]post_train|MaxText)[./]rl[./]train_rl(\.py)?",
    "sft": r"(src[./])?((maxtext[./]trainers[./]post_train|MaxText)[./]sft[./](train_sft|sft_trainer)"
    r"|MaxText[./]sft_trainer)(\.py)?",
}
_CONFIGS = {"rl": "rl.yml", "sft": "sft.yml"}
_DEFAULTS = {"rl": maxtext_defaults.RL, "sft": maxtext_defaults.SFT}
_TRUE = ("true", "1", "yes")


@dataclass(frozen=True)
class Program:
    """One of MaxText's programs: `rl` or `sft`, its module, its arguments and its environment."""

    kind: str
    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def program_of(text: str) -> Program | None:
    """Return the program of a command, or None: another one, or one that needs a shell (pip install, cd, …)."""
    script = parse(as_text(text), {})
    if len(script.commands) != 1:
        return None
    (command,) = script.commands
    environment = {**script.exported, **command.environment}
    words = _without_env(command, environment)
    at = next((at for at, word in enumerate(words[:4]) for kind in _MODULES if re.fullmatch(_MODULES[kind], word)), -1)
    if at < 1 or not re.fullmatch(r"(.*/)?python[\d.]*", words[0]) or not set(words[1:at]) <= {"-m", "-u"}:
        return None
    kind = "rl" if re.fullmatch(_MODULES["rl"], words[at]) else "sft"
    return Program(kind, words[at], words[at + 1 :], environment)


def _without_env(command: Command, environment: dict[str, str]) -> tuple[str, ...]:
    words = list(command.words)
    if words[0] == "env":
        words.pop(0)
        while words and "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
    return tuple(words) or ("",)


def put(draft: Draft, program: Program) -> None:
    """Write the program into a draft. Raises InputError for arguments that a job cannot hold."""
    arguments = _arguments(draft, program)
    put_environment(draft, program.environment)
    _put_names(draft, arguments, program)
    known = {**_DEFAULTS[program.kind]}
    for key in [key for key in arguments if key in known]:
        known[key] = arguments.pop(key)
    (_put_rl if program.kind == "rl" else _put_sft)(draft, known, arguments)
    for key, value in arguments.items():
        if without_secrets(value)[1] or unknown(value):
            raise InputError(f"{key}=…: accepted: a value that is no secret and known before the command runs")
    if arguments:
        draft.put("spec.runtime.maxtext.args", [f"{key}={as_text(value)}" for key, value in arguments.items()], "args")


def _arguments(draft: Draft, program: Program) -> dict[str, str]:
    """Return the arguments by key, the last of each, as MaxText takes them, without its own configuration file."""
    arguments: dict[str, str] = {}
    for argument in program.arguments:
        key, sign, value = argument.partition("=")
        if sign:
            arguments.pop(key, None)
            arguments[key] = value
        elif key.rpartition("/")[2] == _CONFIGS[program.kind]:
            draft.note(as_text(argument), "the program reads it by itself")
        else:
            raise InputError(f"{as_text(argument)}: accepted: key=value, or {_CONFIGS[program.kind]}")
    return arguments


def _put_names(draft: Draft, arguments: dict[str, str], program: Program) -> None:
    """Write what both programs have: model, checkpoint, tokenizer, run, output, token."""
    current = f"maxtext.trainers.post_train.{'rl.train_rl' if program.kind == 'rl' else 'sft.train_sft'}"
    if program.module != current:
        draft.note(program.module, f"started as {current}, its name since 2026: the image needs that MaxText")
    if "model_name" not in arguments:
        raise InputError("model_name: not set; accepted: MaxText's name of the model")
    draft.put("spec.runtime.maxtext.modelName", arguments.pop("model_name"), "model_name")
    for key, path in (("load_parameters_path", "spec.model.uri"), ("base_output_directory", "spec.output.uri")):
        if arguments.get(key):
            draft.put(path, arguments.pop(key), key)
    tokenizer = arguments.get("tokenizer_path", "")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", tokenizer):
        draft.put("spec.model.tokenizer", f"hf://{arguments.pop('tokenizer_path')}", "tokenizer_path")
    if "run_name" in arguments:
        draft.note(f"run_name={as_text(arguments.pop('run_name'))}", "the job's name is the run's directory")
    for key in [key for key in arguments if is_secret(key)]:
        if arguments.pop(key):
            draft.secret(variable_of(key))


def _put_rl(draft: Draft, known: dict[str, str], arguments: dict[str, str]) -> None:
    group, updates, batch = (_int(known, key) for key in ("num_generations", "num_iterations", "batch_size"))
    grpo: dict[str, Any] = {
        "groupSize": group,
        "beta": _float(known, "grpo_beta"),
        "clipLow": _float(known, "grpo_epsilon"),
    }
    if known["loss_algo"] != "grpo":
        grpo = {"loss": known["loss_algo"], **grpo}
    if updates != 1:
        grpo["updatesPerBatch"] = updates
    draft.put("spec.algorithm", {"grpo": grpo}, "loss_algo")
    draft.put("spec.rewards", [{"builtin": "gsm8k"}], "rewards")
    _put_training(draft, known, steps=_int(known, "num_batches") * updates, batch=batch * group)
    micro = _int(known, "train_micro_batch_size")
    if micro > 0:
        draft.put("spec.training.microBatchSize", micro * group, "train_micro_batch_size")
    length = _int(known, "max_target_length")
    rollout: dict[str, Any] = {
        "maxNewTokens": length - _int(known, "max_prefill_predict_length"),
        "temperature": _float(known, "decode_sampling_temperature"),
    }
    if _float(known, "decode_sampling_nucleus_p") != 1.0:
        rollout["topP"] = _float(known, "decode_sampling_nucleus_p")
    if _int(known, "decode_sampling_top_k") > 0:
        rollout["topK"] = _int(known, "decode_sampling_top_k")
    draft.put("spec.rollout", rollout, "decode_sampling_temperature")
    draft.put("spec.checkpoint.keep", _int(known, "max_num_checkpoints_to_keep"), "max_num_checkpoints_to_keep")
    _put_rl_data(draft, known, batch)


def _put_rl_data(draft: Draft, known: dict[str, str], batch: int) -> None:
    draft.put("spec.data.train", _source(known["hf_train_files"], known["dataset_name"], known["train_split"]), "data")
    tests = _int(known, "num_test_batches")
    if tests <= 0:
        return
    rows = _int(known, "eval_batch_size")
    rows = batch if rows < 1 else rows
    name = known["eval_dataset_name"] or known["dataset_name"]
    held_out = {**_source(known["hf_eval_files"], name, "train"), "split": known["eval_split"]}
    draft.put("spec.data.eval", {**held_out, "limit": tests * rows}, "num_test_batches")
    draft.put("spec.evaluation.batchSize", rows, "eval_batch_size")
    if (interval := _int(known, "eval_interval")) > 0:
        draft.put("spec.evaluation.everySteps", interval, "eval_interval")


def _source(files: str, name: str, split: str) -> dict[str, Any]:
    uri = files if files.startswith("hf://") else f"hf://datasets/{name}"
    if files and not files.startswith("hf://"):
        raise InputError(f"hf_train_files={as_text(files)}: accepted: hf://datasets/…")
    return {"uri": uri} if split == "train" else {"uri": uri, "split": split}


def _put_training(draft: Draft, known: dict[str, str], *, steps: int, batch: int) -> None:
    training: dict[str, Any] = {
        "steps": steps,
        "batchSize": batch,
        "sequenceLength": _int(known, "max_target_length"),
        "optimizer": {
            "learningRate": _float(known, "learning_rate"),
            "beta1": _float(known, "adam_b1"),
            "beta2": _float(known, "adam_b2"),
            "weightDecay": _float(known, "adam_weight_decay"),
            "maxGradNorm": _float(known, "gradient_clipping_threshold"),
        },
        "schedule": {"warmupFraction": _float(known, "warmup_steps_fraction")},
    }
    if seed := _int(known, "data_shuffle_seed"):
        training["seed"] = seed
    draft.put("spec.training", training, "training")
    draft.put("spec.checkpoint.everySteps", _int(known, "checkpoint_period"), "checkpoint_period")


def _put_sft(draft: Draft, known: dict[str, str], arguments: dict[str, str]) -> None:
    if not known["steps"]:
        raise InputError("steps: not set; accepted: a number, because MaxText's default is 150,001")
    if known["dataset_type"] != "hf" or known["hf_train_files"]:
        raise InputError("dataset_type, hf_train_files: accepted: a data set of the hub")
    share, micro = _float(known, "per_device_batch_size"), _int(known, "gradient_accumulation_steps")
    per_pass = share * _devices(draft)
    if per_pass != int(per_pass) or per_pass < 1:
        raise InputError(f"per_device_batch_size={share}: accepted: whole rows over {_devices(draft)} devices")
    sft: dict[str, Any] = {}
    if known["sft_train_on_completion_only"].lower() not in _TRUE:
        sft["lossOnPrompt"] = True
    if known["packing"].lower() not in _TRUE:
        sft["packing"] = False
    draft.put("spec.algorithm", {"sft": sft}, "packing")
    _put_training(draft, known, steps=_int(known, "steps"), batch=int(per_pass) * micro)
    if micro > 1:
        draft.put("spec.training.microBatchSize", int(per_pass), "gradient_accumulation_steps")
    draft.put("spec.training.schedule.finalFraction", _float(known, "learning_rate_final_fraction"), "schedule")
    draft.put("spec.data.train", _sft_source(known), "hf_path")
    if (interval := _int(known, "eval_interval")) > 0:
        arguments["eval_interval"] = str(interval)


def _sft_source(known: dict[str, str]) -> dict[str, Any]:
    source = _source("", known["hf_path"], known["train_split"])
    columns = re.findall(r"[\w.-]+", known["train_data_columns"])
    names = {1: ("messages",), 2: ("prompt", "completion")}.get(len(columns))
    if names is None:
        raise InputError(f"train_data_columns={known['train_data_columns']}: accepted: one column, or two")
    return {**source, "columns": dict(zip(names, columns, strict=True))}


def _devices(draft: Draft) -> int:
    if not (kind := draft.get("spec.accelerator.type")):
        raise InputError("per_device_batch_size: accepted: with --tpu-type, which says how many devices there are")
    topology, slices = draft.get("spec.accelerator.topology"), draft.get("spec.accelerator.slices") or 1
    return accelerators.resolve(kind, topology, slices).total_devices


def _int(known: Mapping[str, str], key: str) -> int:
    return int(_number(known, key, whole=True))


def _float(known: Mapping[str, str], key: str) -> float:
    return _number(known, key, whole=False)


def _number(known: Mapping[str, str], key: str, *, whole: bool) -> float:
    text = known[key]
    try:
        value = float(text)
    except ValueError:
        value = None
    if value is None or unknown(text) or (whole and value != int(value)):
        raise InputError(f"{key}={as_text(text)}: accepted: a {'whole ' if whole else ''}number")
    return value
