"""Logits of a large vocabulary never exist: what the compiler reserves says so. Compiled only, nothing is run."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from tests.builders.trainer.steps import Likelihood

from pttrainer.batch import Batch
from pttrainer.losses.chunked_logprobs import token_stats
from pttrainer.models import Model, ModelConfig
from pttrainer.runtime.distributed import logical_axes
from pttrainer.train_step.program import Program
from pttrainer.train_step.step import train_step

B, T, V, D = 8, 4096, 151_936, 896
FULL_LOGITS = B * T * V * 4
"""Bytes, float32: 19.9 GB."""
ALLOWED = 0.15


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_the_heads_forward_and_backward_pass_needs_a_fraction_of_full_logits(compute: str) -> None:
    def loss(hidden_BTD: jax.Array, head_VD: jax.Array, targets_BT: jax.Array, mask_BT: jax.Array) -> jax.Array:
        return jnp.sum(token_stats(hidden_BTD, head_VD.astype(compute), targets_BT, mask_BT).logps_BT)

    lowered = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(
        _shape((B, T, D), compute), _shape((V, D)), _shape((B, T), "int32"), _shape((B, T))
    )
    assert _temporary(lowered) < ALLOWED * FULL_LOGITS


def test_the_whole_train_step_needs_a_fraction_of_full_logits() -> None:
    # In float32: on CPU, XLA turns the operands of 16-bit products into float32 copies of them
    # (docs/findings/training-on-cpu.md).
    # One small layer, so that what is measured is the head, the optimizer and what surrounds them.
    config = ModelConfig("llama", V, D, layers=1, heads=1, kv_heads=1, head_dim=2, d_ff=8, tied_head=True)
    model, adamw = Model(config), optax.adamw(1e-3)
    one = Mesh(np.array(jax.devices()[:1]).reshape((1,) * len(logical_axes.MESH_AXES)), logical_axes.MESH_AXES)
    program = Program(model, Likelihood(), adamw, lambda count: 1e-3)  # type: ignore[arg-type]
    where = program.layout(one)
    step: Any = train_step(program, where)
    ids, numbers = _shape((B, T), "int32"), _shape((B, T))
    batch = Batch(ids, ids, ids, ids, numbers, numbers)
    assert _temporary(step.lower(program.abstract_state(where), batch)) < ALLOWED * FULL_LOGITS


def _temporary(lowered: Any) -> int:
    return int(lowered.compile().memory_analysis().temp_size_in_bytes)


def _shape(shape: tuple[int, ...], dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)
