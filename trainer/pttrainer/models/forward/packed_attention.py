"""How a layer attends within packed rows: by the delta rule, over shared prefixes, without a kernel, or with one."""

from dataclasses import replace

import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from pttrainer.models.attention import flash_kernels, gated_delta, shared_prefix, sparse_selection
from pttrainer.models.attention.dot_product import Scoring, attend_packed
from pttrainer.models.attention.sparse_selection import Queries
from pttrainer.models.config import Chunk, ModelConfig
from pttrainer.models.forward import layer_kinds
from pttrainer.models.forward.remat import CONTEXT, QKV
from pttrainer.models.layers.attention import Attend, Choosing
from pttrainer.runtime.distributed import sharding

KeysAndValues = tuple[Array, Array]
"""Of the tokens of a row, as attention reads them."""
Lent = KeysAndValues | Array
"""What later layers may borrow: keys and values, or which tokens an indexer chose, [B, T, T]."""


def attend(
    config: ModelConfig,
    mask: Array | shared_prefix.Masks,
    is_local: Array | None,
    segment_ids_BT: Array,
    *,
    is_causal: bool = True,
    borrowed: Lent | None = None,
    lends: bool = False,
    chunk_ids_BT: Array | None = None,
    is_balanced: bool = False,
) -> Attend:
    """Return how a layer attends. is_local: a flag where both kinds of layers are in one scan, else None.

    is_causal: no token sees a later one, as the kernels have it. borrowed: of another layer, for one without its own;
    lends: the layer's state is its own keys and values, for others. chunk_ids_BT: from `chunk_ids`. is_balanced: the
    rows' tokens are in the order of `balanced_rows`.
    """

    def packed(q: Array, k: Array | None, v: Array | None, sinks_N: Array | None) -> tuple[Array, KeysAndValues | None]:
        if k is None or v is None:
            assert isinstance(borrowed, tuple)
            k, v = borrowed
        return computed(q, k, v, sinks_N), (k, v) if lends else None

    if config.follows(0):
        assert isinstance(borrowed, Array)
        return _among(config, borrowed, segment_ids_BT)

    def computed(q: Array, k: Array, v: Array, sinks_N: Array | None) -> Array:
        if config.delta is not None:
            assert sinks_N is not None
            return gated_delta.packed(config.delta, q, k, v, sinks_N, segment_ids_BT)
        scoring = layer_kinds.scoring(config, sinks_N)
        q, k, v = checkpoint_name((q, k, v), QKV)
        kernel = flash_kernels.choose_kernel(flash_kernels.problem_of(q, config.kv_heads, scoring))
        if isinstance(mask, shared_prefix.Masks):
            if is_causal and flash_kernels.shares_prompts(kernel, config):
                shared = mask.prompt_PSS.shape[1]
                return flash_kernels.attend(kernel, q, k, v, mask.segments_PX, None, scoring, shared=shared)
            return _named(shared_prefix.attend_shared_prefix(q, k, v, mask, scoring, is_causal=is_causal))
        if kernel == "plain" or not is_causal:
            return _named(attend_packed(q, _whole_row(k), _whole_row(v), mask, scoring, is_causal=is_causal))
        segments = segment_ids_BT, chunk_ids_BT
        return _fused(config, kernel, is_local, (q, k, v), segments, scoring, is_balanced=is_balanced)

    return packed


def can_be_balanced(config: ModelConfig, rows: int, length: int, dtype: str) -> bool:
    """Return True if devices share the rows' tokens and every layer attends by splash, which knows their order.

    Not where a layer's results depend on the order otherwise: the delta rule, or an indexer's choice.
    """
    if not sharding.is_split("sequence"):
        return False
    groups = [group.config for group in config.groups]
    return not any(
        one.delta is not None
        or (one.latent is not None and one.latent.indexer is not None)
        or flash_kernels.choose_kernel(flash_kernels.model_problem(one, rows, length, dtype)) != "splash"
        for one in groups
    )


def chunk_ids(config: ModelConfig, segment_ids_BT: Array, positions_BT: Array) -> Array | None:
    """Return segment ids of layers with chunks: a chunk is a shorter example. None if rows are no longer than one."""
    length = segment_ids_BT.shape[1]
    if not isinstance(config.window, Chunk) or length <= config.window.size:
        return None
    of_row = -(-length // config.window.size)
    return jnp.where(segment_ids_BT > 0, segment_ids_BT * of_row + positions_BT // config.window.size, 0)


def choosing(
    config: ModelConfig, mask: Array | shared_prefix.Masks, segment_ids_BT: Array, *, lends: bool = False
) -> Choosing:
    """Return how a layer attends whose indexer chooses what queries see: no kernel knows its mask.

    Rows in which nothing is left out are those of any other layer. lends: the layer's state is its choice, for others.
    """

    def chosen(queries: Queries, k_BTE: Array) -> Attend:
        assert config.latent is not None
        assert config.latent.indexer is not None
        assert isinstance(mask, Array), "prompts are not shared beside experts (`prompt_sharing`)"
        chosen_BTT = sparse_selection.packed(queries, _whole(k_BTE), mask, config.latent.indexer.keep)
        among = _among(config, chosen_BTT, segment_ids_BT)
        return lambda *inputs: (among(*inputs)[0], chosen_BTT if lends else None)

    return chosen


def _among(config: ModelConfig, chosen_BTT: Array, segment_ids_BT: Array) -> Attend:
    """Return how a layer attends to what an indexer chose."""
    assert config.latent is not None
    assert config.latent.indexer is not None
    is_causal = config.latent.indexer.keep >= chosen_BTT.shape[-1]
    return attend(replace(config, following_layers=()), chosen_BTT, None, segment_ids_BT, is_causal=is_causal)


def _whole(k_BTE: Array) -> Array:
    """Gather an indexer's keys of all tokens, as `_whole_row` does."""
    return sharding.constrain(k_BTE, ("batch", None, None)) if sharding.is_split("sequence") else k_BTE


def _named(out: Array) -> Array:
    named: Array = checkpoint_name(out, CONTEXT)
    return named


def _fused(
    config: ModelConfig,
    kernel: flash_kernels.Kernel,
    is_local: Array | None,
    inputs: tuple[Array, Array, Array],
    segments: tuple[Array, Array | None],
    scoring: Scoring,
    *,
    is_balanced: bool,
) -> Array:
    """Attend by a kernel, whose window is part of its program. A flag chooses where both kinds are in one scan.

    segments: ids of examples, and of chunks where they hide something; a token's is within as many slots before it.
    """
    ids_BT, chunk_ids_BT = segments
    window = config.window if is_local is not None or layer_kinds.kinds(config)[0] else None
    if isinstance(window, Chunk):
        window = None if chunk_ids_BT is None else window.size
        if chunk_ids_BT is not None:
            ids_BT = chunk_ids_BT if is_local is None else jnp.where(is_local, chunk_ids_BT, ids_BT)
    return flash_kernels.attend(kernel, *inputs, ids_BT, window, scoring, is_local=is_local, is_balanced=is_balanced)


def _whole_row(x_BTKH: Array) -> Array:
    """Gather keys or values of all tokens if `sequence` splits them: each device attends with its own queries.

    They are the smallest part of attention (K heads, not N), so one gather is cheaper than a ring.
    """
    if not sharding.is_split("sequence"):
        return x_BTKH
    return sharding.constrain(x_BTKH, ("batch", None, "kv_heads", None))
