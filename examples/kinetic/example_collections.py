"""Kinetic's `example_collections`: a function over many settings: values as they come, failures, found again."""

from concurrent.futures import ThreadPoolExecutor, as_completed

import posttrain


@posttrain.remote(accelerator="cpu-1", labels={"sweep": "rates"})
def train(rate: float, steps: int) -> dict[str, float]:
    """Minimise (x - 3)² by gradient descent; a rate above 1 diverges."""
    if rate > 1:
        raise ValueError(f"rate {rate} diverges")
    x = 0.0
    for _ in range(steps):
        x -= rate * 2 * (x - 3)
    return {"rate": rate, "loss": (x - 3) ** 2}


SETTINGS = [{"rate": 0.1, "steps": 5}, {"rate": 0.4, "steps": 5}, {"rate": 5.0, "steps": 5}]


def sweep() -> list[posttrain.Run]:
    """Submit a job for each setting; as many run at a time as there are free slices, or as the queue admits."""
    return [train.submit(**setting) for setting in SETTINGS]


def print_as_they_end(runs: list[posttrain.Run]) -> None:
    """Print each value, or what was raised, as soon as it is there."""
    with ThreadPoolExecutor(len(runs)) as threads:
        values = {threads.submit(run.value): run for run in runs}
        for value in as_completed(values):
            try:
                print(f"  {values[value].name}: {value.result()}")
            except ValueError as error:  # what the function raised there
                print(f"  {values[value].name}: failed: {error}")


def attach() -> posttrain.Run:
    """Find the sweep again by its label, and return its best run."""
    runs = posttrain.Client().list(labels="sweep=rates")
    done = [run for run in runs if run.status.phase == "Succeeded"]
    print(f"{len(runs)} runs, {len(runs) - len(done)} failed")
    return min(done, key=lambda run: run.value()["loss"])


if __name__ == "__main__":
    runs = sweep()
    print_as_they_end(runs)
    print("best:", attach().value())
    for run in runs:
        run.delete()
