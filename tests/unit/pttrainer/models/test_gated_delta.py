"""Packed rows of the gated delta rule: each example is as it would be in a row of its own."""

import jax
import jax.numpy as jnp
import numpy as np

from pttrainer.models.attention import gated_delta
from pttrainer.models.config import Delta

DELTA = Delta(key_heads=1, value_heads=2, key_dim=4, value_dim=3, width=2)
LENGTHS = (30, 50)
STRONG = -200.0
"""The logarithm of a decay that leaves nothing: one token's share of what float32 holds no exponential of."""


def inputs(decay: float) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return what is convolved, decays, rates and the convolution. decay: of the first example's tokens."""
    rng, tokens = np.random.default_rng(0), sum(LENGTHS)
    g_TV = np.full((tokens, DELTA.value_heads), decay)
    g_TV[LENGTHS[0] :] = -rng.uniform(0.01, 0.5, (LENGTHS[1], DELTA.value_heads))
    arrays = (
        rng.normal(size=(1, tokens, DELTA.channels)),
        g_TV[None],
        rng.uniform(0.2, 0.9, (1, tokens, DELTA.value_heads)),
        rng.normal(size=(DELTA.width, DELTA.channels)),
    )
    mixed, g, beta, conv = (jnp.asarray(x, jnp.float32) for x in arrays)
    return mixed, g, beta, conv


def second(mixed: jax.Array, g: jax.Array, beta: jax.Array, conv: jax.Array, segments: list[int]) -> jax.Array:
    out_BTVU = gated_delta.packed(DELTA, mixed, g, beta, conv, jnp.asarray([segments]))
    return out_BTVU[:, -LENGTHS[1] :]


def test_the_decay_of_an_example_is_nothing_to_the_next_of_its_row() -> None:
    """In the same chunk and behind it; gradients are numbers, too."""
    mixed, g, beta, conv = inputs(STRONG)
    both = [1] * LENGTHS[0] + [2] * LENGTHS[1]
    packed = second(mixed, g, beta, conv, both)
    alone = second(*(x[:, LENGTHS[0] :] for x in (mixed, g, beta)), conv, [1] * LENGTHS[1])
    np.testing.assert_allclose(packed, alone, rtol=0, atol=1e-6)
    gradients = jax.grad(lambda *xs: second(*xs, conv, both).sum(), argnums=(0, 1, 2))(mixed, g, beta)
    for gradient in gradients:
        assert np.isfinite(gradient).all()
        assert not gradient[:, : LENGTHS[0]].any()
        assert gradient[:, LENGTHS[0] :].any()
