"""From the spec to a model: where weights, tokenizer and chat template come from; its form is `model_form`'s.

Everything that a job can get wrong about them is found here, before anything is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import jax

from ptapi.spec import ModelSpec, Training
from pttrainer.data.tokenization import tokenizer
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.errors import ConfigError
from pttrainer.models import Model, Params
from pttrainer.models.loading.model_spec import RANDOM, Source, form_of, open_source
from pttrainer.models.loading.peft_adapters import Origin, open_origin
from pttrainer.models.quantization.quantize import Errors
from pttrainer.models.weights.load_save import Quantizing, load
from pttrainer.runtime.io import model_files, storage
from pttrainer.runtime.io.model_files import NOTHING_PINNED, Note, Pinned

ONCE_ON_CPU = {"xla_backend_optimization_level": 1}
"""How the program that draws random weights is compiled for a CPU: it runs once, and compiling it as well as a step's
takes longer than running it."""


@dataclass(frozen=True)
class Assembled:
    """A model, how its text becomes tokens, and how its first weights are made."""

    model: Model
    tokenizer: Tokenizer
    chat: Chat
    initial_params: Callable[[Params], Params]
    """From the weights' shardings to the weights that training starts from (adapters are not among them)."""
    commit: str | None = None
    """Of the model, where it has one (hf://)."""
    seed: int = 0
    """Of fresh adapters."""
    origin: Origin | None = None
    """Where adapters begin, if they are not fresh."""
    quantization_errors: Errors = field(default_factory=Errors)
    """What quantising the weights changed; known when `initial_params` has been called."""

    def frozen(self, shardings: Params) -> Params | None:
        """The weights that adapters are put on; None where all weights are trained."""
        where = self.model.frozen(shardings)
        return None if where is None else self.initial_params(where)

    def trained(self, shardings: Params) -> Params:
        """What is trained, before its first step."""
        where = self.model.trained(shardings)
        if self.model.adapters is None:
            return self.initial_params(where)
        if self.origin is not None:
            return self.origin.params(self.model, where)
        return self.model.init_adapters(where, self.seed)


def assemble(spec: ModelSpec, training: Training, note: Note, pinned: Pinned = NOTHING_PINNED) -> Assembled:
    """Reads config and tokenizer; raises ConfigError. Weights are read when asked for.

    pinned: the commits that an earlier attempt of this run began with; a branch may have moved since.
    """
    source = open_source(spec.uri, "spec.model.uri", note, pinned.model or spec.revision)
    config = source.config
    chat = _chat(spec, source, note)
    model = Model.of(form_of(config, training, jax.default_backend()))
    errors = Errors()
    initial = partial(first_params, source, model.without_adapters, seed=training.seed, errors=errors)
    origin = _origin(training, model, note, pinned.adapters)
    return Assembled(model, chat.tokenizer, chat, initial, source.commit, training.seed, origin, errors)


def first_params(
    source: Source, model: Model, shardings: Params, *, seed: int = 0, errors: Errors | None = None
) -> Params:
    """A source's weights, on these shardings; raises ConfigError where the files do not fit the config.

    errors: takes what quantisation changed, where the model is quantised.
    """
    errors = Errors() if errors is None else errors
    errors.squares.clear()  # of an earlier call: these are the same weights again
    params: Params
    if source.directory is not None:
        quantizing = None if model.quantization is None else Quantizing(model.quantization, errors)
        whole = model.unquantised.abstract()
        params = load(source.config, source.directory, whole, shardings, source.called, quantizing)
        return params
    options = ONCE_ON_CPU if jax.default_backend() == "cpu" else None
    init = jax.jit(model.init_measured, out_shardings=(shardings, None), compiler_options=options)
    params, changed = init(jax.random.key(seed))
    for name, squares in changed.items():
        errors.add(name, squares)
    return params


def open_chat(spec: ModelSpec, note: Note) -> Chat:
    """Tokenizer and template alone; no weights are fetched. Raises ConfigError."""
    return _chat(spec, open_source(spec.uri, "spec.model.uri", note, spec.revision, weights=False), note)


def _chat(spec: ModelSpec, source: Source, note: Note) -> Chat:
    words = _tokenizer(spec, source, note)
    if words.size > source.config.vocab_size:
        raise ConfigError(f"spec.model: the tokenizer has {words.size} ids, the model only {source.config.vocab_size}")
    template = words.template
    if spec.chat_template is not None:
        template = storage.read_file(spec.chat_template, "spec.model.chatTemplate").decode()
    return Chat(words, template)


def _tokenizer(spec: ModelSpec, source: Source, note: Note) -> Tokenizer:
    if spec.tokenizer is not None and not spec.tokenizer.startswith(RANDOM):
        files = model_files.fetch(spec.tokenizer, "spec.model.tokenizer", note, weights=False)
        return tokenizer.load(storage.Directory(files.directory))
    if source.directory is None or spec.tokenizer is not None:
        return tokenizer.byte_tokenizer()
    return tokenizer.load(storage.Directory(source.directory), source.config.eos_ids)


def _origin(training: Training, model: Model, note: Note, pinned: str | None) -> Origin | None:
    if training.lora is None or training.lora.origin is None:
        return None
    return open_origin(training.lora.origin, model, note, pinned)
