"""Kinetic's `simple_demo`: train a small network in a pod, on random pictures, and take its last loss."""

import posttrain


@posttrain.remote(accelerator="cpu-2")
def train() -> float:
    """Train for five epochs, and return the last loss."""
    import jax
    import jax.numpy as jnp
    import optax

    print("devices:", jax.devices())
    key = jax.random.key(0)
    pictures = jax.random.normal(key, (256, 64))
    labels = jax.random.randint(key, (256,), 0, 10)
    weights = {"hidden": 0.1 * jax.random.normal(key, (64, 32)), "out": jnp.zeros((32, 10))}
    optimizer = optax.adam(1e-2)

    def loss_of(weights: dict[str, jax.Array]) -> jax.Array:
        logits = jax.nn.relu(pictures @ weights["hidden"]) @ weights["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @jax.jit
    def step(
        weights: dict[str, jax.Array], state: optax.OptState
    ) -> tuple[dict[str, jax.Array], optax.OptState, jax.Array]:
        loss, gradient = jax.value_and_grad(loss_of)(weights)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(weights, updates), state, loss

    state = optimizer.init(weights)
    for epoch in range(5):
        weights, state, loss = step(weights, state)
        print(f"epoch {epoch}: loss {loss:.3f}")
    return float(loss)


if __name__ == "__main__":
    print(f"last loss: {train():.3f}")
