"""Weights as MaxText has them: names, axes, and what its families fold into a weight.

Letters: L layers, D model, N heads, H head size, V vocabulary. Kernels of attention have an axis for heads: [D, N, H],
and `out` [N, H, D]. Scanned, the layers of a block are stacked along axis 1: [D, L, N, H]; else each has its own name.
What MaxText's forward pass leaves out is in its weights: queries of Llama, Mistral and Gemma 2 are divided by sqrt(H),
Gemma has norms of 1 + scale and embeddings times sqrt(D), and Llama 3.1's rotary pairs lie side by side.

Source: MaxText's `checkpoint_conversion/utils/param_mapping.py` (e591f30), whose `to_huggingface` reads the result.
Left out: mixtures of experts, vision towers, other families, and biases that these have not.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from pttrainer.errors import ConfigError
from pttrainer.models import ModelConfig, Params
from pttrainer.models.config.rope import Llama3Scaling

Path = tuple[str, ...]
Named = Iterator[tuple[Path, np.ndarray]]

ATTENTION_AND_MLP = {
    "attention.q": "self_attention.query.kernel",
    "attention.k": "self_attention.key.kernel",
    "attention.v": "self_attention.value.kernel",
    "attention.o": "self_attention.out.kernel",
    "attention.q_bias": "self_attention.query.bias",
    "attention.k_bias": "self_attention.key.bias",
    "attention.v_bias": "self_attention.value.bias",
    "attention.q_norm.scale": "self_attention.query_norm.scale",
    "attention.k_norm.scale": "self_attention.key_norm.scale",
    "mlp.gate": "mlp.wi_0.kernel",
    "mlp.up": "mlp.wi_1.kernel",
    "mlp.down": "mlp.wo.kernel",
}
TWO_NORMS = {
    "attention_norm.scale": "pre_self_attention_layer_norm.scale",
    "mlp_norm.scale": "post_self_attention_layer_norm.scale",
}
FOUR_NORMS = {
    "attention_norm.scale": "pre_self_attention_norm.scale",
    "attention_post_norm.scale": "post_self_attention_norm.scale",
    "mlp_norm.scale": "pre_ffw_norm.scale",
    "mlp_post_norm.scale": "post_ffw_norm.scale",
}
GEMMA2_ROWS = 128
"""Rows of zeros that MaxText's Gemma 2 has behind the embeddings."""
GEMMA3_ROWS = 262_144
"""Rows of MaxText's Gemma 3; what Hugging Face's has beyond is of images, and unused in text."""
GEMMA3_PATTERN = 6


class Block(NamedTuple):
    """Layers under one name. suffix: of their modules' names; is_stacked: they are one array for each weight."""

    name: Path
    layers: Sequence[int]
    is_stacked: bool = False
    suffix: str = ""


@dataclass(frozen=True)
class Family:
    """How MaxText writes a family's layers."""

    norms: Mapping[str, str]
    blocks: Callable[[int, bool], list[Block]]
    divides_queries: bool = False
    is_gemma: bool = False


def _plain(layers: int, scan: bool) -> list[Block]:
    if scan:
        return [Block(("layers",), range(layers), is_stacked=True)]
    return [Block((f"layers_{i}",), [i]) for i in range(layers)]


def _in_pairs(layers: int, scan: bool) -> list[Block]:
    """Gemma 2: a local and a global layer are one of MaxText's."""
    names = ("_local", "_global")
    if scan:
        return [Block(("layers",), range(first, layers, 2), True, names[first]) for first in (0, 1)]
    return [Block((f"layers_{i // 2}",), [i], suffix=names[i % 2]) for i in range(layers)]


def _in_sixes(layers: int, scan: bool) -> list[Block]:
    """Gemma 3: five local layers and a global one are a block; those of an incomplete block are not scanned."""
    if not scan:
        return _plain(layers, scan)
    whole = layers - layers % GEMMA3_PATTERN
    places = range(GEMMA3_PATTERN if whole else 0)
    blocks = [Block(("layers", f"layers_{i}"), range(i, whole, GEMMA3_PATTERN), is_stacked=True) for i in places]
    return blocks + [Block(("layers_remainder", f"layers_{i}"), [whole + i]) for i in range(layers - whole)]


FAMILIES = {
    "llama": Family(TWO_NORMS, _plain, divides_queries=True),
    "mistral": Family(TWO_NORMS, _plain, divides_queries=True),
    "qwen2": Family(TWO_NORMS, _plain),
    "qwen3": Family(TWO_NORMS, _plain),
    "gemma2": Family(FOUR_NORMS, _in_pairs, divides_queries=True, is_gemma=True),
    "gemma3_text": Family(FOUR_NORMS, _in_sixes, is_gemma=True),
}


def check(config: ModelConfig) -> None:
    """Raise ConfigError for a model whose weights MaxText has in another form, or not."""
    if config.family not in FAMILIES:
        raise ConfigError(f"--layout maxtext: {config.family}: accepted: {', '.join(FAMILIES)}")
    if config.vision is not None:
        raise ConfigError("--layout maxtext: the model has a vision tower; accepted: models of text")
    if config.family == "gemma2" and (config.layers % 2 or config.query_scale != config.head_dim**-0.5):
        raise ConfigError(
            f"--layout maxtext: gemma2 with {config.layers} layers and attention scaled by {config.query_scale:.4g}; "
            f"accepted: an even number, and {config.head_dim**-0.5:.4g}, the root of the head size, which is all that "
            "MaxText's Gemma 2 knows"
        )


def weights(config: ModelConfig, params: Params, fetch: Callable[[Any], Any], *, scan: bool) -> Named:
    """Yield the name and value of every weight, from merged weights of ours. Raises ConfigError."""
    check(config)
    family = FAMILIES[config.family]
    names = {**ATTENTION_AND_MLP, **family.norms}
    yield ("token_embedder", "embedding"), _embedding(config, np.asarray(fetch(params["embedding"])))
    yield ("decoder", "decoder_norm", "scale"), _norm(family, np.asarray(fetch(params["norm"]["scale"])))
    if "head" in params:
        yield ("decoder", "logits_dense", "kernel"), np.asarray(fetch(params["head"])).T
    for path, leaf in _leaves(params["layers"]):
        if path not in names:
            raise ConfigError(f"--layout maxtext: {config.family} with {path}, which MaxText's has not")
        values_L = _layers(config, family, path, np.asarray(fetch(leaf)))
        module, *rest = names[path].split(".")
        for block in family.blocks(config.layers, scan):
            own = values_L[list(block.layers)]
            value = np.moveaxis(own, 0, 1) if block.is_stacked else own[0]
            yield ("decoder", *block.name, module + block.suffix, *rest), np.ascontiguousarray(value)


def nested(named: Named) -> dict[str, Any]:
    """Return weights as a tree."""
    tree: dict[str, Any] = {}
    for path, value in named:
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = value
    return tree


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _layers(config: ModelConfig, family: Family, path: str, values: np.ndarray) -> np.ndarray:
    """Return a weight of all layers with MaxText's axes behind that of layers, and its factors."""
    if path.endswith(".scale"):
        return _norm(family, values)
    if path == "attention.o":
        return values.reshape(len(values), config.heads, config.head_dim, -1)
    if not path.startswith("attention."):
        return values
    heads = config.heads if path.startswith("attention.q") else config.kv_heads
    values = values.reshape(*values.shape[:-1], heads, config.head_dim)
    if path in ("attention.q", "attention.k") and isinstance(config.rope.scaling, Llama3Scaling):
        first, second = np.split(values, 2, axis=-1)
        values = np.stack([first, second], axis=-1).reshape(values.shape)
    return _times(values, config.head_dim**-0.5) if path == "attention.q" and family.divides_queries else values


def _norm(family: Family, scale: np.ndarray) -> np.ndarray:
    return (scale.astype(np.float32) + 1.0).astype(scale.dtype) if family.is_gemma else scale


def _embedding(config: ModelConfig, values_VD: np.ndarray) -> np.ndarray:
    factor = config.d_model**0.5
    if config.family == "gemma2":
        return np.pad(_times(values_VD, factor), ((0, GEMMA2_ROWS), (0, 0)))
    if config.family == "gemma3_text":
        return _times(values_VD[:GEMMA3_ROWS], float(ml_dtypes.bfloat16(factor)))
    return values_VD


def _times(values: np.ndarray, factor: float) -> np.ndarray:
    return (values.astype(np.float32) * np.float32(factor)).astype(values.dtype)
