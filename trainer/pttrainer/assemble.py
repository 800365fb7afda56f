"""From the spec to a model: where config, weights and tokenizer come from.

Everything that a job can get wrong about its model is found here, before anything is compiled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax

from ptapi.spec import ModelSpec, Training
from pttrainer import distributed, storage, tokenizer
from pttrainer.chat import Chat
from pttrainer.errors import ConfigError
from pttrainer.models import Model, ModelConfig, Params, from_hf, preset
from pttrainer.models.model import Remat
from pttrainer.models.weights import load
from pttrainer.tokenizer import Tokenizer

RANDOM = "random://"


@dataclass(frozen=True)
class Assembled:
    """A model, how its text becomes tokens, and how its first weights are made."""

    model: Model
    tokenizer: Tokenizer
    chat: Chat
    initial_params: Callable[[Params], Params]
    """From the weights' shardings to the weights that training starts from."""


def assemble(spec: ModelSpec, training: Training) -> Assembled:
    """Reads config and tokenizer; raises ConfigError. Weights are read when asked for."""
    local = None if spec.uri.startswith(RANDOM) else local_directory(spec.uri, "spec.model.uri")
    config = preset(spec.uri.removeprefix(RANDOM)) if local is None else _read_config(local, spec.uri)
    words = _tokenizer(spec, local, config)
    if words.size > config.vocab_size:
        raise ConfigError(f"spec.model: the tokenizer has {words.size} ids, the model only {config.vocab_size}")
    template = words.template
    if spec.chat_template is not None:
        template = storage.read_file(spec.chat_template, "spec.model.chatTemplate").decode()
    model = Model(config, _compute_dtype(training), training.precision.params, _remat(training))

    def initial_params(shardings: Params) -> Params:
        if local is not None:
            loaded: Params = load(config, local, model.abstract(), shardings)
            return loaded
        params: Params = jax.jit(model.init, out_shardings=shardings)(jax.random.key(training.seed))
        return params

    return Assembled(model, words, Chat(words, template), initial_params)


def local_directory(uri: str, field: str) -> Path:
    """A model's files on this machine; those of a bucket are copied into the cache once."""
    scheme, path = storage.split(uri)
    if scheme == "file":
        if not Path(path).is_dir():
            raise ConfigError(f"{field}: {uri}: no such directory; hint: the path must exist where the trainer runs")
        return Path(path)
    place = storage.place(uri)
    names = [name for name in place.names() if name.endswith((".json", ".jinja", ".safetensors"))]
    if not names:
        raise ConfigError(f"{field}: {uri}: holds no model files")
    cache = distributed.cache_directory() / "models" / hashlib.sha256(uri.encode()).hexdigest()[:16]
    copy = storage.Directory(cache)
    for name in names:
        content = place.read(name)
        if content is not None:
            copy.write(name, content)
    return cache


def _read_config(directory: Path, uri: str) -> ModelConfig:
    file = directory / "config.json"
    try:
        return from_hf(json.loads(file.read_text()))
    except FileNotFoundError as error:
        raise ConfigError(
            f"spec.model.uri: {uri}: no config.json; accepted: Hugging Face's layout, such as a run's export/"
        ) from error
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"spec.model.uri: {uri}/config.json: is not valid JSON: {error.msg} in line {error.lineno}"
        ) from error


def _tokenizer(spec: ModelSpec, local: Path | None, config: ModelConfig) -> Tokenizer:
    if spec.tokenizer is not None and not spec.tokenizer.startswith(RANDOM):
        return tokenizer.load(storage.Directory(local_directory(spec.tokenizer, "spec.model.tokenizer")))
    if local is None or spec.tokenizer is not None:
        return tokenizer.byte_tokenizer()
    return tokenizer.load(storage.Directory(local), config.eos_ids)


def _compute_dtype(training: Training) -> str:
    if training.precision.compute != "auto":
        return training.precision.compute
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def _remat(training: Training) -> Remat:
    if training.remat != "auto":
        return training.remat
    return "none" if jax.default_backend() == "cpu" else "full"
