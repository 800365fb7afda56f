"""Kinetic's `jax_profiling_demo`: a trace of some steps, kept in the run directory for `tensorboard` or XProf."""

import posttrain


@posttrain.remote(accelerator="cpu-1")
def profile() -> str:
    """Trace ten steps, and return where the trace is."""
    import os

    import jax
    import jax.numpy as jnp

    folder = os.environ["POSTTRAIN_RUN_DIRECTORY"] + "/profile"

    @jax.jit
    def step(weights: jax.Array) -> jax.Array:
        return weights - 0.01 * jnp.tanh(weights @ weights)

    weights = step(jnp.eye(64)).block_until_ready()  # compiled before the trace begins
    with jax.profiler.trace(folder.removeprefix("file://")):
        for _ in range(10):
            weights = step(weights)
        weights.block_until_ready()
    return folder


if __name__ == "__main__":
    print("trace:", profile())
