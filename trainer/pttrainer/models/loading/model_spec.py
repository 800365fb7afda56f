"""From the spec to a model's form: the config that a URI names, number formats, recomputation, adapters.

Everything that a job can get wrong about its model's shape is found here, without jax; `assemble` adds weights, words
and templates.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from ptapi.spec import DraftModel, Ppo, Training
from pttrainer.errors import ConfigError
from pttrainer.models import Form, ModelConfig, from_hf, preset
from pttrainer.models.lora.adapters import Adapters, matrices
from pttrainer.models.structure import Remat
from pttrainer.runtime.io import model_files
from pttrainer.runtime.io.model_files import Note

RANDOM = "random://"
DRAFT_URI = "spec.rollout.speculative.draft.uri"
CRITIC_URI = "spec.algorithm.ppo.critic.uri"


def form_of(config: ModelConfig, training: Training, platform: str) -> Form:
    """The model's form as this job computes it on this platform (`cpu`, `tpu`, `gpu`)."""
    quantization = None if training.quantization is None else training.quantization.weights
    dtype, remat = _compute_dtype(training, platform), _remat(training, platform)
    return Form(config, dtype, training.precision.params, remat, _adapters(training, config), quantization)


def beside(config: ModelConfig, form: Form) -> Form:
    """A model that stands beside the job's own and is never trained: a teacher, a draft. It computes in the same
    format and is kept in it."""
    return Form(config, form.compute_dtype, form.compute_dtype)


def draft_of(spec: DraftModel, target: Form, note: Note, *, weights: bool = True) -> tuple[Source, Form]:
    """The model that guesses tokens for another. weights: fetch its files, too. Raises ConfigError."""
    source = open_source(spec.uri, DRAFT_URI, note, spec.revision, weights=weights)
    return source, beside(source.config, target)


def critic_of(spec: Ppo, policy: Form, note: Note, *, weights: bool = True) -> tuple[Form | None, Source | None]:
    """A critic's own model, trained as the policy's is (whole, or by adapters on the policy's weights), and where it
    begins if not where the policy does. None where it reads the policy's hidden states. Raises ConfigError."""
    if spec.critic.kind == "head":
        return None, None
    source = None
    if spec.critic.uri is not None:
        source = open_source(spec.critic.uri, CRITIC_URI, note, spec.critic.revision, weights=weights)
    config = policy.config if source is None else source.config
    # A tied head is no weights of its own: a critic has no use for an output head.
    return replace(policy, config=replace(config, tied_head=True)), source


@dataclass(frozen=True)
class Source:
    """Where a model comes from: its config, and its files on this machine (none for random weights).

    called: what messages call it.
    """

    config: ModelConfig
    called: str
    directory: Path | None = None
    commit: str | None = None


def open_source(uri: str, field: str, note: Note, revision: str | None = None, *, weights: bool = True) -> Source:
    """Fetches what a URI names and reads its config; raises ConfigError, naming `field`."""
    called = f"{field}: {uri}"
    if uri.startswith(RANDOM):
        return Source(preset(uri.removeprefix(RANDOM)), called)
    files = model_files.fetch(uri, field, note, revision=revision, weights=weights)
    return Source(_read_config(files.directory, called), called, files.directory, files.commit)


def _read_config(directory: Path, called: str) -> ModelConfig:
    try:
        raw = json.loads((directory / "config.json").read_text())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{called}: no config.json; accepted: Hugging Face's layout, such as a run's export/"
        ) from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{called}/config.json: is not valid JSON: {error.msg} in line {error.lineno}") from error
    try:
        return from_hf(raw)
    except ConfigError as error:
        raise ConfigError(f"{called}: {error}") from error


def _compute_dtype(training: Training, platform: str) -> str:
    if training.precision.compute != "auto":
        return training.precision.compute
    return "float32" if platform == "cpu" else "bfloat16"


def _adapters(training: Training, config: ModelConfig) -> Adapters | None:
    lora = training.lora
    if lora is None:
        return None
    chosen = matrices(config, lora.targets)
    if lora.dropout and config.experts is not None and "gate" in chosen:
        raise ConfigError(
            f"spec.training.lora.dropout: {lora.dropout}: not for the experts of {config.family}; accepted: 0, "
            "or targets: attention"
        )
    return Adapters(lora.rank, lora.alpha, chosen, lora.rs_lora, lora.dropout, lora.embeddings)


def _remat(training: Training, platform: str) -> Remat:
    if training.remat != "auto":
        return training.remat
    return "none" if platform == "cpu" else "full"
