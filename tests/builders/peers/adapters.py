"""Adapters on the small models of `models`, with numbers that a seed makes, and both of their exports."""

import dataclasses
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pttrainer.checkpoint.model_export import BaseModelRef, ExportWriter, TokenizerFiles, export, export_adapters
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, Params
from pttrainer.models.lora import adapters
from pttrainer.models.lora.adapters import Adapters
from pttrainer.runtime.io.directory import Directory

CASES: dict[str, tuple[str, bool]] = {
    "llama-3.1": ("all-linear", False),
    "llama-biases-mqa": ("mlp", True),
    "mistral": ("attention", False),
    "qwen-2.5": ("all-linear", True),
    "qwen-3": ("all-linear", False),
    "qwen-3-moe": ("all-linear", False),
    "mixtral": ("all-linear", False),
    "deepseek-v3": ("attention", False),
    "phi-4": ("all-linear", True),
    "glm-4.5": ("attention", False),
    "gemma-2": ("all-linear", False),
    "gemma-3": ("all-linear", False),
    "gemma-4": ("all-linear", False),
    "gemma-4-small": ("all-linear", False),
    "gemma-4-moe": ("all-linear", True),
    "gpt-oss": ("all-linear", True),
}
"""Case of `models`: targets, rsLoRA."""

REFERENCES = ("llama-3.1", "qwen-2.5", "qwen-3-moe", "gemma-3")
"""Those whose numbers are committed."""


EMBEDDED = ("llama-3.1", "qwen-2.5", "gemma-2")
"""Those compared with adapters on embedding and head as well: untied, tied, tied with scaled embeddings."""


def adapted(
    model: Model, params: Params, name: str, *, embeddings: bool = False, vision: bool = False
) -> tuple[Model, Params]:
    """The model with adapters that are no longer fresh. vision: on all matrices of its tower and projector, too."""
    targets, is_rank_stabilised = CASES[name]
    of_vision = adapters.vision_matrices(model.config, "all-linear") if vision else ()
    chosen = Adapters(
        5, 8.0, adapters.matrices(model.config, targets), is_rank_stabilised, embeddings=embeddings, vision=of_vision
    )
    with_adapters = dataclasses.replace(model, adapters=chosen)
    numbers = jax.tree_util.tree_map_with_path(_numbers, with_adapters.trained(with_adapters.abstract()))
    return with_adapters, with_adapters.join_params(params, numbers)


def export_both(model: Model, params: Params, base: Path, directory: Path) -> tuple[Path, Path]:
    """Directories of the PEFT export and of the merged one."""
    words, write = TokenizerFiles(byte_tokenizer(), None), ExportWriter(jax.device_get)
    apart, merged = directory / "apart", directory / "merged"
    export_adapters(Directory(apart), model, BaseModelRef(f"file://{base}"), model.trained(params), words, write)
    export(Directory(merged), model, params, words, write)
    return apart, merged


def _numbers(path: Any, x: Any) -> jax.Array:
    """Half as large as the weights: they move logits by 4 to 9. With 0.2 and rsLoRA they outweigh them, and PEFT's
    own merged and unmerged logits are 1.1e-4 apart in float32 (ours are 0.8e-4 from float64), too coarse to compare."""
    rng = np.random.default_rng(zlib.crc32(jax.tree_util.keystr(path).encode()))
    return jnp.asarray(0.1 * rng.standard_normal(x.shape), x.dtype)
