"""The first and the last step of every pass: tokens to the stream, and the stream to what the output head reads.

Letters: B rows, T tokens, V vocabulary, D model, R rank of an adapter. The embedding and the head may have adapters.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from pttrainer.models.config import ModelConfig
from pttrainer.models.layers.decoder import Decoder
from pttrainer.models.layers.linear import Drop, LowRank
from pttrainer.models.lora import adapters as lora
from pttrainer.models.shapes.structure import ModelStructure, Params
from pttrainer.runtime.distributed import explicit_collectives, sharding


def embed(
    model: ModelStructure,
    decoder: Decoder,
    tokens_BT: Array,
    noisy: Callable[[Array], Array] | None = None,
    *,
    is_explicit: bool = False,
    in_sampler: bool = False,
) -> Array:
    """Return the stream [B, T, D] before the layers. noisy: changes embeddings in training.

    is_explicit: the look-up's collectives are written out (`explicit_collectives`). in_sampler: a vocabulary that the
    devices of `tensor` do not divide is looked up on each of them, which holds it whole.
    """
    table_VD, dtype = decoder.embedding[...], model.compute_dtype
    x_BTD = _looked_up(table_VD, tokens_BT, dtype, is_explicit=is_explicit, in_sampler=in_sampler)
    if decoder.embedding_lora is not None:
        x_BTD = x_BTD + _low_rank(decoder.embedding_lora, tokens_BT, model.compute_dtype)
    if noisy is not None:
        x_BTD = noisy(x_BTD)
    if model.config.embedding_scale is not None:
        x_BTD = x_BTD * jnp.asarray(model.config.embedding_scale, x_BTD.dtype)
    return sharding.constrain(x_BTD, ("batch", "sequence", None))


def for_layers(
    model: ModelStructure,
    decoder: Decoder,
    tokens_BT: Array,
    x_BTD: Array,
    dropped: Callable[[Array], Drop] | None = None,
    *,
    is_explicit: bool = False,
) -> Array | None:
    """Return every layer's own embeddings of the tokens [B, T, L, P], if the model has them. x_BTD: from `embed`."""
    of = decoder.layer_embeddings
    if of is None:
        return None
    drop = None if dropped is None else dropped(jnp.int32(model.config.layers))
    own_BTX = _looked_up(of.table[...], tokens_BT, model.compute_dtype, is_explicit=is_explicit)
    return sharding.constrain(of(own_BTX, x_BTD, drop), ("batch", "sequence", None, None))


def _looked_up(table_VD: Array, tokens_BT: Array, dtype: str, *, is_explicit: bool, in_sampler: bool = False) -> Array:
    if is_explicit:
        return explicit_collectives.look_up(table_VD, tokens_BT, dtype)
    # Gathered over `fsdp` before the look-up: looking up in slices of D would replicate the result instead.
    place = sharding.constrain_fitting if in_sampler else sharding.constrain
    return place(table_VD.astype(dtype), ("vocab", None))[tokens_BT]


def _low_rank(adapter: LowRank, tokens_BT: Array, dtype: str) -> Array:
    a_VR = sharding.constrain(adapter.a[...].astype(dtype), ("vocab", None))
    low_BTR = a_VR[tokens_BT] * jnp.asarray(adapter.scale, dtype)
    return low_BTR @ adapter.b[...].astype(dtype)


def for_head(config: ModelConfig, decoder: Decoder, x_BTD: Array, dropped: Callable[[Array], Drop] | None) -> Array:
    """Return the stream after the last norm, in the form that `head` reads."""
    hidden_BTD: Array = decoder.norm(x_BTD)
    adapter = decoder.embedding_lora if config.tied_head else decoder.head_lora
    if adapter is None:
        return hidden_BTD
    read_BTD = hidden_BTD
    if dropped is not None:
        read_BTD = dropped(jnp.int32(config.layers))("head", hidden_BTD)
    b_RD = adapter.b[...].astype(hidden_BTD.dtype)
    low_BTR = (read_BTD @ b_RD.T) * jnp.asarray(adapter.scale, hidden_BTD.dtype)
    return jnp.concatenate([hidden_BTD, low_BTR], axis=-1)


def head(config: ModelConfig, params: Params) -> Array:
    """Return the output head [V, D]: logits are hidden_BTD @ head_VD.T. Tied heads are the embedding.

    With an adapter, [V, D + rank]: one product of both, in which a small update is not rounded away as it would be in a
    sum of matrices in bfloat16.
    """
    name = "embedding" if config.tied_head else "head"
    head_VD: Array = params[name]
    adapter = params.get(f"{name}{lora.SUFFIX}")
    return head_VD if adapter is None else jnp.concatenate([head_VD, adapter["a"]], axis=1)
