"""TRL's words as a job: the model, its data, the algorithm, the training, and a note for each word that is left."""

import re
from collections.abc import Mapping
from typing import Any

from ptctl.errors import InputError
from ptctl.importers.draft import Draft
from ptctl.importers.huggingface import data
from ptctl.importers.huggingface.advice import note_rest
from ptctl.importers.huggingface.algorithms import PAIRS, PUT
from ptctl.importers.huggingface.launch import Launch
from ptctl.importers.huggingface.training import put_checkpoints, put_evaluation, put_training
from ptctl.importers.huggingface.trl_defaults import DEFAULTS
from ptctl.importers.huggingface.words import Words
from ptctl.importers.secrets import variable_of

_OLD = {"evaluation_strategy": "eval_strategy", "max_seq_length": "max_length", "torch_dtype": "dtype"}
_OTHER = "code of its own, which is not read: what it does beside TRL's {} is not imported"


def draft_of(launch: Launch, values: dict[str, Any], devices: int | None, environment: Mapping[str, str]) -> Draft:
    """Return the job of a start of TRL. devices: GPUs, None where only the machine knows."""
    source = f"`{launch.target}`"
    trainer = launch.trainer
    if trainer not in PUT:
        names = ", ".join(f"trl {name}" for name in PUT)
        missing = f"no counterpart for {trainer}" if trainer else "its name says no trainer"
        raise InputError(f"{source}: {missing}; accepted: {names}",
                         "to run it as it is: runtime.container, with an image that has it")  # fmt: skip
    typed = {new: old for old, new in _OLD.items() if old in values}
    draft, words = Draft(source), Words(_renamed(values, source), DEFAULTS[trainer], typed)
    if launch.is_own_script:
        draft.change(launch.target, _OTHER.format(trainer))
    put_job(draft, words, trainer, devices, environment)
    data.put_data(draft, words)
    finish(draft, words, devices)
    return draft


def _renamed(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the settings with today's names for those that TRL and transformers have renamed."""
    if twice := [f"{old} and {new}" for old, new in _OLD.items() if old in values and new in values]:
        raise InputError(f"{source}: {', '.join(twice)}: accepted: one name for one setting")
    return {_OLD.get(name, name): value for name, value in values.items()}


def put_job(draft: Draft, words: Words, trainer: str, devices: int | None, environment: Mapping[str, str]) -> None:
    """Write all but the data."""
    _put_names(draft, words, trainer)
    PUT[trainer](draft, words)
    put_training(draft, words, devices, per_row=2 if trainer in PAIRS else 1)
    put_checkpoints(draft, words)
    _put_trackers(draft, words, environment)


def finish(draft: Draft, words: Words, devices: int | None) -> None:
    """Write the evaluation, the secrets, and a note for each word that is left."""
    if draft.get("spec.data.eval") is not None:
        put_evaluation(draft, words, devices)
    for name in words.rest():
        if words.is_secret(name):
            draft.secret(variable_of(name))
            words.take(name)
    note_rest(draft, words)


def _put_names(draft: Draft, words: Words, trainer: str) -> None:
    model = words.text("model_name_or_path")
    draft.blank("spec.accelerator.type", "v6e-1", "the TPUs: v6e-16, v5p-128, …")
    if model.startswith("gs://") or re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", model):
        draft.put("spec.model.uri", model if "://" in model else f"hf://{model}", "model_name_or_path")
    else:
        shown = f"; {model} is on the machine that it ran on: copy it" if model else ""
        draft.blank("spec.model.uri", "gs://bucket/model", f"the model: hf://organisation/name or gs://…{shown}")
    if (revision := words.text("model_revision")) not in ("", "main"):
        draft.put("spec.model.revision", revision, "model_revision")
    if tokenizer := words.text("tokenizer_name_or_path"):
        draft.put("spec.model.tokenizer", tokenizer if "://" in tokenizer else f"hf://{tokenizer}", "tokenizer")
    output = words.text("output_dir")
    if output.startswith("gs://"):
        draft.put("spec.output.uri", output.rstrip("/"), "output_dir")
    elif output:
        draft.note(words.shown("output_dir"), "output.uri: gs://…; the run goes to output.uri/NAME")
    name = words.text("run_name") or output.rstrip("/").rpartition("/")[2] or f"{model.rpartition('/')[2]}-{trainer}"
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())[:50].strip("-")
    draft.put("metadata.name", plain if plain[:1].isalpha() else f"job-{plain}", "run_name")


def _put_trackers(draft: Draft, words: Words, environment: Mapping[str, str]) -> None:
    trackers = words.several("report_to")
    project = environment.get("WANDB_PROJECT") or words.text("project") or "huggingface"
    for tracker in trackers:
        if tracker == "wandb":
            entity = environment.get("WANDB_ENTITY")
            draft.put("spec.tracking.wandb", {"project": project, **({"entity": entity} if entity else {})}, "wandb")
        elif tracker == "trackio" and (space := words.text("trackio_space_id")):
            draft.put("spec.tracking.trackio", {"project": project, "spaceId": space}, "trackio")
        elif tracker == "mlflow" and (uri := environment.get("MLFLOW_TRACKING_URI")):
            experiment = environment.get("MLFLOW_EXPERIMENT_NAME", project)
            draft.put("spec.tracking.mlflow", {"trackingUri": uri, "experiment": experiment}, "mlflow")
        elif tracker not in ("none", "tensorboard"):
            draft.note(f"report_to: {tracker}", "spec.tracking: wandb, mlflow with a server, trackio with a Space")
