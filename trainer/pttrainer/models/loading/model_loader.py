"""Load the model of a job: weights, tokenizer and chat template; `model_spec` has its structure.

Everything that a job can get wrong about them is detected here, before anything is compiled.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import jax

from ptapi.spec import ModelSpec, Training
from pttrainer.data.tokenization import tokenizer
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.errors import ConfigError
from pttrainer.models import Model, Params
from pttrainer.models.families.vision_presets import VisionPreset
from pttrainer.models.loading import image_inputs
from pttrainer.models.loading.model_spec import RANDOM, ModelSource, headless, open_source, structure_of
from pttrainer.models.loading.peft_adapters import InitialAdapters, open_initial_adapters
from pttrainer.models.quantization.quantize import QuantizationErrors
from pttrainer.models.weights.load_weights import Quantizing, load
from pttrainer.runtime.io import model_files, storage
from pttrainer.runtime.io.directory import Directory
from pttrainer.runtime.io.model_files import NOTHING_PINNED, Note, Pinned

ONCE_ON_CPU = {"xla_backend_optimization_level": 1}
"""Compiler options of the program that draws random weights on a CPU: it runs once, and optimising it takes longer than
running it."""


@dataclass(frozen=True)
class LoadedModel:
    """A model, its tokenizer and chat template, and how its first weights are made."""

    model: Model
    tokenizer: Tokenizer
    chat: Chat
    initial_params: Callable[[Params], Params]
    """From the weights' shardings to the weights that training starts from (adapters are not among them)."""
    commit: str | None = None
    """Of the model, where it has one (hf://)."""
    directory: Path | None = None
    """The model's local files; None for random weights."""
    seed: int = 0
    """Of fresh adapters."""
    origin: InitialAdapters | None = None
    """Where adapters begin, if they are not fresh."""
    quantization_errors: QuantizationErrors = field(default_factory=QuantizationErrors)
    """What quantising the weights changed; known when `initial_params` has been called."""

    def frozen(self, shardings: Params) -> Params | None:
        """Return the frozen base weights of adapters; None if all weights are trained."""
        where = self.model.frozen(shardings)
        return None if where is None else self.initial_params(where)

    def trained(self, shardings: Params) -> Params:
        """Return the trained weights, before their first step."""
        where = self.model.trained(shardings)
        if self.model.adapters is None:
            return self.initial_params(where)
        if self.origin is not None:
            return self.origin.params(self.model, where)
        return self.model.init_adapters(where, self.seed)


def load_model(
    spec: ModelSpec, training: Training, note: Note, pinned: Pinned = NOTHING_PINNED, *, has_head: bool = True
) -> LoadedModel:
    """Read config and tokenizer; raise ConfigError. Weights are read on demand.

    pinned: the commits that an earlier attempt of this run began with; a branch may have moved since. has_head: False
    for a model that predicts no tokens.
    """
    source = open_source(spec.uri, "spec.model.uri", note, pinned.model or spec.revision, images=spec.images)
    source = source if has_head else headless(source)
    config = source.config
    chat = chat_of(spec, source, note)
    model = Model.from_structure(structure_of(config, training, jax.default_backend()))
    errors = QuantizationErrors()
    initial = partial(load_params, source, model.without_adapters, seed=training.seed, errors=errors)
    origin = _initial_adapters(training, model, note, pinned.adapters)
    return LoadedModel(
        model, chat.tokenizer, chat, initial, source.commit, source.directory, training.seed, origin, errors
    )


def load_params(
    source: ModelSource, model: Model, shardings: Params, *, seed: int = 0, errors: QuantizationErrors | None = None
) -> Params:
    """Return a source's weights, on these shardings; raise ConfigError if the files do not fit the config.

    errors: receives the quantisation errors, if the model is quantised.
    """
    errors = QuantizationErrors() if errors is None else errors
    errors.squares.clear()  # of an earlier call: these are the same weights again
    params: Params
    if source.directory is not None:
        quantizing = None if model.quantization is None else Quantizing(model.quantization, errors)
        whole = model.unquantised.abstract()
        params = load(source.config, source.directory, whole, shardings, source.display_name, quantizing, source.unread)
        return params
    options = ONCE_ON_CPU if jax.default_backend() == "cpu" else None
    init = jax.jit(model.init_measured, out_shardings=(shardings, None), compiler_options=options)
    params, changed = init(jax.random.key(seed))
    for name, squares in changed.items():
        errors.add(name, squares)
    return params


def open_chat(spec: ModelSpec, note: Note) -> Chat:
    """Return tokenizer and template only; no weights are fetched. Raises ConfigError."""
    source = open_source(spec.uri, "spec.model.uri", note, spec.revision, weights=False, images=spec.images)
    return chat_of(spec, source, note)


def chat_of(spec: ModelSpec, source: ModelSource, note: Note) -> Chat:
    """Return the tokenizer and template of a model whose files are there. Raises ConfigError."""
    tokenizer = _tokenizer(spec, source, note)
    if tokenizer.size > source.config.vocab_size:
        raise ConfigError(
            f"spec.model.tokenizer: has {tokenizer.size} tokens; accepted: at most {source.config.vocab_size}, the "
            "model's vocabulary; hint: leave it unset to use the model's own"
        )
    template = tokenizer.template
    if spec.chat_template is not None:
        template = storage.read_file(spec.chat_template, "spec.model.chatTemplate").decode()
    vision = source.config.vision
    if vision is None:
        return Chat(tokenizer, template)
    files = image_inputs.files_of(source)
    pixels = image_inputs.pixel_format(vision, files, source.display_name, pan_and_scan=spec.pan_and_scan)
    return Chat(tokenizer, template, image_inputs.tokens(source.config, tokenizer, pixels, source.display_name), pixels)


def _tokenizer(spec: ModelSpec, source: ModelSource, note: Note) -> Tokenizer:
    if spec.tokenizer is not None and not spec.tokenizer.startswith(RANDOM):
        files = model_files.fetch(spec.tokenizer, "spec.model.tokenizer", note, weights=False)
        return tokenizer.load(Directory(files.directory))
    if spec.tokenizer is not None or source.directory is None:
        return _byte_tokenizer(None if spec.tokenizer is not None else source.with_images)
    more = () if source.config.vision is None else image_inputs.FILES
    return tokenizer.load(Directory(source.directory), source.config.eos_ids, more)


def _byte_tokenizer(seeing: VisionPreset | None) -> Tokenizer:
    if seeing is None:
        return tokenizer.byte_tokenizer()
    return tokenizer.byte_tokenizer(seeing.texts, tokenizer.image_template(seeing.mark), seeing.files)


def _initial_adapters(training: Training, model: Model, note: Note, pinned: str | None) -> InitialAdapters | None:
    if training.lora is None or training.lora.origin is None:
        return None
    return open_initial_adapters(training.lora.origin, model, note, pinned)
