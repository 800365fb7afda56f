"""CPU time of a layer with a gated delta rule per that of a layer with attention, both passes, a row of 2,048 tokens.

    python benchmarks/trainer/delta_layer.py

Prints both and their ratio. Layers without an MLP do not exist here, so both have the same small one.
"""

import argparse
import time

import jax
import jax.numpy as jnp

from pttrainer.models import Model
from pttrainer.models.config import Delta, ModelConfig, Rope

SIZES = {"vocab_size": 64, "d_model": 512, "layers": 2, "heads": 8, "kv_heads": 2, "head_dim": 64, "d_ff": 64}
LAYERS = {"attention": None, "gated delta rule": Delta(key_heads=4, value_heads=8, key_dim=64, value_dim=64, width=4)}


def cpu_seconds(delta: Delta | None, tokens: int, runs: int) -> float:
    """Return the least CPU time of a forward and backward pass."""
    config = ModelConfig(
        "qwen3_5_text",
        **SIZES,
        rope=Rope(1e6, share=0.25),
        qk_norm=True,
        gated=True,
        zero_centred_norms=True,
        delta=delta,
    )
    model = Model(config)
    params = jax.jit(model.init)(jax.random.key(0))
    row = jnp.arange(tokens)[None]

    @jax.jit
    def both_passes(params):
        return jax.grad(lambda p: jnp.mean(model.forward(p, row % 64, row, jnp.ones_like(row))))(params)

    jax.block_until_ready(both_passes(params))
    return min(_measured(both_passes, params) for _ in range(runs))


def _measured(function, params) -> float:
    began = time.process_time()
    jax.block_until_ready(function(params))
    return time.process_time() - began


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    seconds = {name: cpu_seconds(delta, options.tokens, options.runs) for name, delta in LAYERS.items()}
    for name, each in seconds.items():
        print(f"{name}: {1e6 * each / options.tokens / SIZES['layers']:.1f} CPU-microseconds per token and layer")
    print(f"ratio: {seconds['gated delta rule'] / seconds['attention']:.2f}")
