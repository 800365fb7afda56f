"""The structure of a job's model: config behind the URI, number formats, recomputation, adapters.

Everything that a job can get wrong about its model's shape is detected here, without jax; `model_loader` adds weights,
tokenizer and templates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ptapi.spec import DraftModel, Ppo, Rollout, Training
from pttrainer.errors import ConfigError
from pttrainer.models import ModelConfig, ModelStructure, from_hf, preset
from pttrainer.models.config.any_vision import have_same_inputs
from pttrainer.models.families import takes_images
from pttrainer.models.families.config_json.fields import Raw
from pttrainer.models.families.mistral import mistral3
from pttrainer.models.families.vision_presets import VISION_PRESETS, VisionPreset
from pttrainer.models.lora.adapters import Adapters, matrices, vision_matrices
from pttrainer.models.shapes.structure import Remat
from pttrainer.runtime.io import json_text, model_files
from pttrainer.runtime.io.model_files import Note

RANDOM = "random://"
DRAFT_URI = "spec.rollout.speculative.draft.uri"
TIED = "tie_word_embeddings"
SCORE = "score.weight"
"""The head of a reward model in a file."""
CRITIC_URI = "spec.algorithm.ppo.critic.uri"


def structure_of(config: ModelConfig, training: Training, platform: str) -> ModelStructure:
    """Return the model's structure as this job computes it on this platform (`cpu`, `tpu`, `gpu`)."""
    quantization = None if training.quantization is None else training.quantization.weights
    formats, remat = training.formats(on_cpu=platform == "cpu"), _remat(training, platform)
    adapters, length = _adapters(training, config), training.sequence_length
    config = config.at_length(length)
    structure = ModelStructure(config, formats.compute, formats.params, remat, adapters, quantization, length)
    return replace(structure, exported_dtype=formats.exported)


def auxiliary_structure(config: ModelConfig, form: ModelStructure) -> ModelStructure:
    """Return the structure of a model that is never trained: a teacher, a draft.

    It computes in the format of the job's model and is stored in it.
    """
    of = config.at_length(form.length)
    return ModelStructure(of, form.compute_dtype, form.compute_dtype, length=form.length)


def check_state(field: str, config: ModelConfig) -> None:
    """Refuse speculation with a model whose layers keep a state; raise ConfigError, naming `field`."""
    if config.delta is not None:
        raise ConfigError(
            f"{field}: {config.family} has layers with a gated delta rule, whose state cannot go back to before a "
            "token that is not accepted; accepted: unset, or models with attention in every layer"
        )


def check_routing(rollout: Rollout, config: ModelConfig) -> None:
    """Refuse to replay the routing of a model without experts; raise ConfigError."""
    if rollout.routing_replay and config.experts is None:
        raise ConfigError(
            f"spec.rollout.routingReplay: true: {config.family} has no experts to choose; accepted: false, or a "
            "mixture of experts; hint: leave it out"
        )


def draft_of(
    spec: DraftModel, target: ModelStructure, note: Note, *, weights: bool = True
) -> tuple[ModelSource, ModelStructure]:
    """Return the model that drafts tokens for another. weights: fetch its files, too. Raises ConfigError.

    It reads images if the other one does and its tower takes the same arrays of pixels.
    """
    source = _with_same_images(open_source(spec.uri, DRAFT_URI, note, spec.revision, weights=weights), target.config)
    check_state(DRAFT_URI, source.config)
    return source, auxiliary_structure(source.config, target)


def _with_same_images(source: ModelSource, target: ModelConfig) -> ModelSource:
    """Return the source with its vision tower if it reads images exactly as the target does."""
    if target.vision is None or source.raw is None or not takes_images(source.raw):
        return source
    config = _parsed(source.raw, source.display_name, images=True)
    is_same = config.image_token_id == target.image_token_id and have_same_inputs(config.vision, target.vision)
    return replace(source, config=config) if is_same else source


def critic_of(
    spec: Ppo, policy: ModelStructure, note: Note, *, weights: bool = True
) -> tuple[ModelStructure | None, ModelSource | None]:
    """Return a critic's own model and, if it differs from the policy, where it begins.

    It is trained like the policy (fully, or by adapters on the policy's weights). None if the critic reads the
    policy's hidden states. Raises ConfigError.
    """
    if spec.critic.kind == "head":
        return None, None
    source = None
    if spec.critic.uri is not None:
        source = headless(open_source(spec.critic.uri, CRITIC_URI, note, spec.critic.revision, weights=weights))
    config = without_head(policy.config) if source is None else source.config.at_length(policy.length)
    return replace(policy, config=config), source


def without_head(config: ModelConfig) -> ModelConfig:
    """Return the config of a model that predicts nothing: a tied head is no weights of its own."""
    return replace(config, tied_head=True)


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from: its config, and its local files (none for random weights).

    display_name: its name in messages. unread: tensors that its files may have and nothing reads. raw: its
    `config.json`, where it has one. with_images: of random weights, what is there besides.
    """

    config: ModelConfig
    display_name: str
    directory: Path | None = None
    commit: str | None = None
    unread: frozenset[str] = frozenset()
    raw: Raw | None = None
    with_images: VisionPreset | None = None


def headless(source: ModelSource) -> ModelSource:
    """Return the source without its output head, and without the head of a reward model."""
    return replace(source, config=without_head(source.config), unread=frozenset({SCORE}))


def open_source(
    uri: str, field: str, note: Note, revision: str | None = None, *, weights: bool = True, images: bool = False
) -> ModelSource:
    """Fetch what a URI names and read its config; raise ConfigError, naming `field`.

    images: with the vision tower; otherwise the model is its text part.
    """
    display_name = f"{field}: {uri}"
    if uri.startswith(RANDOM):
        return _random_source(uri.removeprefix(RANDOM), display_name, images=images)
    files = model_files.fetch(uri, field, note, revision=revision, weights=weights)
    raw = _with_tied_head(_read_json(files.directory, display_name), files.directory, display_name)
    return ModelSource(_parsed(raw, display_name, images=images), display_name, files.directory, files.commit, raw=raw)


def _random_source(name: str, display_name: str, *, images: bool) -> ModelSource:
    seeing = VISION_PRESETS.get(name)
    if seeing is not None:
        config = _parsed(seeing.config, display_name, images=images)
        return ModelSource(config, display_name, raw=seeing.config, with_images=seeing)
    if images:
        raise ConfigError(
            f"{display_name}: takes no images; accepted: a model with a vision tower, such as Gemma 3 or Qwen3-VL, or "
            f"{', '.join(RANDOM + preset for preset in VISION_PRESETS)}"
        )
    return ModelSource(preset(name), display_name)


def _read_json(directory: Path, display_name: str) -> dict[str, Any]:
    try:
        raw = json_text.loads((directory / "config.json").read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{display_name}: no config.json; accepted: Hugging Face's layout, such as a run's export/"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{display_name}/config.json: {error}; accepted: Hugging Face's format") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{display_name}/config.json: is not an object; accepted: Hugging Face's format")
    return raw


def _with_tied_head(raw: Raw, directory: Path, display_name: str) -> Raw:
    """Return the config with what its files decide: transformers ties Mistral 3's head unless they hold one.

    Where no file is there that says it, as when only the config is read from a bucket, the text part decides.
    """
    if raw.get("model_type") != mistral3.MODEL_TYPE or raw.get(TIED) is not None:
        return raw
    from pttrainer.models.weights import hf_directory  # numpy, which a quick plan does without

    names = hf_directory.stored_names(directory, display_name)
    return raw if not names else {**raw, TIED: not any(name.endswith("lm_head.weight") for name in names)}


def _parsed(raw: Raw, display_name: str, *, images: bool) -> ModelConfig:
    try:
        return from_hf(raw, images=images)
    except ConfigError as error:
        raise ConfigError(f"{display_name}: {error}") from error


def _adapters(training: Training, config: ModelConfig) -> Adapters | None:
    lora = training.lora
    if lora is None:
        return None
    chosen = matrices(config, lora.targets)
    if lora.dropout and config.experts is not None and "gate" in chosen:
        raise ConfigError(
            f"spec.training.lora.dropout: {lora.dropout}: not supported for the experts of {config.family}; "
            "accepted: 0, or targets: attention"
        )
    of_vision = vision_matrices(config, lora.targets) if training.vision == "lora" else ()
    return Adapters(lora.rank, lora.alpha, chosen, lora.rs_lora, lora.dropout, lora.embeddings, of_vision)


def _remat(training: Training, platform: str) -> Remat:
    """Return the policy; of `auto` on TPUs the one that needs least memory (`preflight.memory.recomputation`)."""
    if training.remat != "auto":
        return training.remat
    return "none" if platform == "cpu" else "full"
