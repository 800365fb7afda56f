"""Kinetic's `fashion_mnist`, `example_gke` and `pathways_example`: functions on TPUs.

They are the functions of a CPU with another `accelerator`. Output is a bucket: set POSTTRAIN_OUTPUT=gs://….
"""

from typing import Any

import posttrain


@posttrain.remote(accelerator="v5e-1", requirements=["keras==3.12.0"], env={"KERAS_BACKEND": "jax"})
def train_keras() -> dict[str, float]:
    """Kinetic's `fashion_mnist`: what the image lacks is installed once, by the first job that names it."""
    import keras

    (pictures, labels), held_out = keras.datasets.fashion_mnist.load_data()
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    model.fit(pictures / 255.0, labels, epochs=5, batch_size=64)
    return dict(zip(("loss", "accuracy"), model.evaluate(held_out[0] / 255.0, held_out[1]), strict=True))


@posttrain.remote(accelerator="v6e-8", capacity=["spot", "onDemand"])
def on_spot() -> int:
    """Kinetic's `example_gke`: spot machines, and others where there are none; the operator makes the node pool."""
    import jax

    return jax.device_count()


@posttrain.remote(accelerator="v6e-16")
def on_every_host() -> tuple[int, int]:
    """Kinetic's `pathways_example`, without Pathways: every host calls the function, and all see all chips."""
    import jax
    from jax.experimental import multihost_utils

    ranks = multihost_utils.process_allgather(jax.numpy.array(jax.process_index()))
    return jax.process_count(), int(ranks.sum())


@posttrain.remote(accelerator="v6e-16", pathways={"enabled": True})
def with_pathways() -> tuple[int, int]:
    """Do the same under Pathways: one process calls the function, and drives all chips."""
    import jax

    return jax.process_count(), jax.device_count()


FUNCTIONS: list[Any] = [train_keras, on_spot, on_every_host, with_pathways]

if __name__ == "__main__":
    runs = [function.submit() for function in FUNCTIONS]
    for run in runs:
        print(run.name, run.value())
