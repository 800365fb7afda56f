"""The critic's loss, per token, float32; the caller reduces.

    ½ · max((V − R)², (clip(V, V_old − ε, V_old + ε) − R)²)              Schulman's PPO code; arXiv 2005.12729, 3.1

R is the return (`gae`), V_old the critic's value before the batch's first update. The maximum makes the clip a bound:
a value that left the interval towards its return gains nothing more, one that left it the other way is still pulled
back. Without the clip (ε = 0) it is half the squared error. Degenerate case: in the first update V = V_old, and the
loss is half the squared advantage.
"""

import jax.numpy as jnp
from jax import Array


def clipped(values_BT: Array, old_BT: Array, returns_BT: Array, clip: float) -> tuple[Array, Array]:
    """Return (loss, 1 where the clip decides)."""
    plain_BT = jnp.square(values_BT - returns_BT)
    if not clip:
        return 0.5 * plain_BT, jnp.zeros_like(plain_BT)
    bounded_BT = jnp.square(jnp.clip(values_BT, old_BT - clip, old_BT + clip) - returns_BT)
    return 0.5 * jnp.maximum(plain_BT, bounded_BT), (bounded_BT > plain_BT).astype(jnp.float32)
