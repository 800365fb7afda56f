"""What the vLLM engine uses of a trainer's context: the spec, the model and how the trainer scores, without a run."""

from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from tests.builders.trainer import specs

from pttrainer.batch import Batch
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.models import Model, Params
from pttrainer.rollout.context import Context
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.sharding import fetch, put
from pttrainer.runtime.io.directory import Directory
from pttrainer.train_step import scoring


def moved(params: Params, by: float) -> Params:
    """Weights after a step of training."""
    return jax.tree.map(lambda x: x * (1.0 + by), params)


@lru_cache
def scorer(model: Model) -> Any:
    return scoring.score_step(model, NamedSharding(mesh(), PartitionSpec()))


@lru_cache
def mesh() -> jax.sharding.Mesh:
    return sharding.make_mesh((1,), jax.devices()[:1])


def context(
    tmp_path: Path, model: Model, temperature: float = 1.0, chat: Chat | None = None
) -> tuple[Context, list[str]]:
    """A context, and the notes that are made in it. chat: of a model with images."""
    spec = specs.tiny({"grpo": {}}, rollout={"max_new_tokens": 16, "temperature": temperature})

    def score(params: Params, batch: Batch, heat: float) -> TokenStats:
        with jax.set_mesh(mesh()):
            return cast(TokenStats, jax.tree.map(np.asarray, scorer(model)(params, put(mesh(), batch), heat)))

    notes: list[str] = []
    made = SimpleNamespace(
        spec=spec, model=model, mesh=mesh(), tokenizer=byte_tokenizer() if chat is None else chat.tokenizer,
        chat=SimpleNamespace(source=None, pixels=None) if chat is None else chat,
        score=score, fetch=fetch, leader=True, messages=None,
        note=notes.append, alive=lambda: None, run=Directory(tmp_path / "runs" / "job"),
    )  # fmt: skip
    return cast(Context, made), notes
