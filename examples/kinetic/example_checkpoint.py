"""Kinetic's `example_checkpoint`: a loop that saves with Orbax, and goes on from its newest checkpoint.

A call that is preempted is made again in the same run directory, so it finds what it saved there. To go on with an
earlier call's checkpoints, pass their directory: `run.path`.
"""

import posttrain


@posttrain.remote(accelerator="cpu-1")
def train(steps: int, directory: str | None = None) -> list[int]:
    """Train for some steps more than the newest checkpoint has, and return which."""
    import os

    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    directory = directory or os.environ["POSTTRAIN_RUN_DIRECTORY"]
    directory = directory.removeprefix("file://")  # Orbax takes paths and gs://
    with ocp.CheckpointManager(f"{directory}/checkpoints") as manager:
        newest = manager.latest_step()
        start = 0 if newest is None else newest + 1
        state = {"weights": jnp.zeros(4)}
        if newest is not None:
            state = manager.restore(newest, args=ocp.args.StandardRestore(state))
        for step in range(start, start + steps):
            state = {"weights": state["weights"] + 1}
            manager.save(step, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
    print(f"weights after step {start + steps - 1}: {state['weights']}")
    return list(range(start, start + steps))


if __name__ == "__main__":
    first = train.submit(3)
    print("steps of the first call:", first.value())
    print("steps of the second:", train(2, directory=first.path))
