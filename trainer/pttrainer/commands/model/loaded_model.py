"""A model to serve: an export, weights of a hub or random ones, or a run (its export, else its newest checkpoint)."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from ptapi import run_directory
from ptapi.spec import ModelSpec, Training
from pttrainer.commands import note
from pttrainer.errors import ConfigError

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from pttrainer.data.tokenization.chat_template import Chat
    from pttrainer.models import Model
    from pttrainer.models.loading.model_loader import LoadedModel as ModelParts
    from pttrainer.rollout.native.native_engine import NativeEngine

_CHECKPOINT = re.compile(rf"^(?:file|gs)://.*/([^/]+)/{run_directory.CHECKPOINTS}/(\d+)$")
SCHEMES = ("file://", "gs://", "hf://", "random://")


class LoadedModel(NamedTuple):
    """An engine, weights in its format, and the model's chat template. length: most tokens of prompt and answer."""

    name: str
    engine: "NativeEngine"
    weights: Any
    chat: "Chat"
    length: int


class OpenedModel(NamedTuple):
    """A model as it was trained: its parts, all its weights, and the mesh that they lie on."""

    parts: "ModelParts"
    params: Any
    mesh: "Mesh"


def open_model(uri: str) -> OpenedModel:
    """Load the weights that a URI names. Raises ConfigError."""
    is_checkpoint = _CHECKPOINT.search(uri) is not None or _is_unexported_run(uri)
    return _checkpoint(uri) if is_checkpoint else _model(_exported(uri))


def load(path: str, name: str | None, length: int | None) -> LoadedModel:
    """Load what a path names. Raises ConfigError."""
    import jax

    from pttrainer.rollout.native.decoding_weights import DecodingWeights, reshaped
    from pttrainer.rollout.native.native_engine import NativeEngine
    from pttrainer.runtime.distributed import sharding

    uri = uri_of(path)
    parts, params, mesh = open_model(uri)
    length = length_of(parts, length)
    model = of_length(parts.model, length)
    mesh = reshaped(mesh, (1, 1, mesh.size, 1, 1))  # a few rows have nothing to split but the matrices
    with jax.set_mesh(mesh):
        weights = DecodingWeights(model, mesh)(params)
    place = partial(sharding.put, mesh)
    engine = NativeEngine(model, parts.tokenizer, place, jax.device_get, mesh, delivered=True)
    return LoadedModel(name or name_of(uri), engine, weights, parts.chat, length)


def length_of(parts: "ModelParts", length: int | None) -> int:
    """Return the most tokens of prompt and answer: those that are wanted, or the model's up to 8192.

    Of a model with other rotary factors for longer sequences: up to those.
    """
    positions = parts.model.config.max_positions
    if length is not None and not 2 <= length <= positions:
        raise ConfigError(f"--max-length: {length}: accepted: 2 to {positions}, the model's positions")
    return length or min(parts.model.config.longest, 8192)


def of_length(model: "Model", length: int) -> "Model":
    """Return the model for sequences of this many tokens; one for long sequences stays one."""
    return model if length <= model.config.longest else replace(model, config=model.config.at_length(length))


def uri_of(path: str) -> str:
    """Return the URI of a path, which may be one already. Raises ConfigError."""
    directory = Path(path).expanduser()
    is_directory = "://" not in path and directory.is_dir()
    uri = f"file://{directory.resolve()}" if is_directory else path
    try:
        return ModelSpec(uri=uri).uri.rstrip("/")
    except ValidationError as error:
        kind = "URI of a model" if path.startswith(SCHEMES) else "directory"
        raise ConfigError(
            f"model: {path}: not a {kind}; accepted: an export or run directory, file:///…, gs://BUCKET/…, "
            "hf://ORG/NAME, random://PRESET"
        ) from error


def name_of(uri: str) -> str:
    """Return the name of a model: `org/name` of the hub, `RUN@STEP` of a checkpoint, else the run or directory."""
    if checkpoint := _CHECKPOINT.search(uri):
        return "@".join(checkpoint.groups())
    parts = uri.partition("://")[2].split("/")
    if uri.startswith("hf://"):
        return "/".join(parts)
    return parts[-2] if parts[-1] == run_directory.EXPORT and len(parts) > 1 else parts[-1]


def _has(uri: str, file: str) -> bool:
    from pttrainer.runtime.io import storage

    return uri.startswith(("file://", "gs://")) and storage.place(uri).read(file) is not None


def _exported(uri: str) -> str:
    """Return where the model's files are: of a run directory, its export."""
    return f"{uri}/{run_directory.EXPORT}" if _has(uri, run_directory.SPEC) else uri


def _is_unexported_run(uri: str) -> bool:
    return _has(uri, run_directory.SPEC) and not _has(f"{uri}/{run_directory.EXPORT}", "config.json")


def _model(uri: str) -> OpenedModel:
    import jax

    from pttrainer.models.loading.model_loader import load_model
    from pttrainer.runtime.distributed import sharding

    parts = load_model(ModelSpec(uri=uri, images=_takes_images(uri)), Training(), note)
    mesh = sharding.make_mesh((1, jax.device_count()))
    model = parts.model
    layout = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
    with jax.set_mesh(mesh):
        return OpenedModel(parts, parts.initial_params(layout), mesh)


def _takes_images(uri: str) -> bool:
    """Return True if the model has a vision tower that is supported, and what pictures need besides."""
    from pttrainer.models.loading.model_loader import open_chat

    try:
        return open_chat(ModelSpec(uri=uri, images=True), lambda line: None).images is not None
    except ConfigError:
        return False  # or there is no such model, which is said when it is loaded


def _checkpoint(uri: str) -> OpenedModel:
    """Return a checkpoint, the newest one of a run that has no export, adapters included."""
    from pttrainer.commands.export import restored

    run = restored(uri, "model")
    if not _CHECKPOINT.search(uri):
        note(f"{uri}: no whole model in {run_directory.EXPORT}/; its newest checkpoint is loaded, step {run.step}")
    params = run.parts.model.join_params(run.parts.frozen(run.layout), run.trained)
    return OpenedModel(run.parts, params, run.mesh)
