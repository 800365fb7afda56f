"""Kinetic's `example_async_jobs`: two jobs at once, followed, read, found again from elsewhere, and cleaned up."""

import posttrain


@posttrain.remote(accelerator="cpu-1", labels={"example": "async-jobs"})
def fit(slope: float, rows: int) -> float:
    """Fit a line to noisy points, and return how far its slope is off."""
    import numpy as np

    random = np.random.default_rng(0)
    x = random.normal(size=rows)
    y = slope * x + random.normal(scale=0.1, size=rows)
    estimate = float(x @ y / (x @ x))
    print(f"{rows} rows: slope {estimate:.3f}")
    return abs(estimate - slope)


def submit_and_follow() -> list[posttrain.Run]:
    """Submit both, then wait for each and read what it printed and returned."""
    runs = [fit.submit(2.0, rows=1_000), fit.submit(-1.0, rows=2_000)]
    for run in runs:
        run.wait(on_change=lambda status: print(f"  {status.name}: {status.phase}"))
        print(f"  last line: {next(run.logs(tail=1), '')}")
        print(f"  error: {run.value():.4f}")
    return runs


def attach(name: str) -> None:
    """Take a job by its name, as another program does, or a notebook that was opened anew."""
    run = posttrain.Client().get(name)
    print(f"{run.name} is {run.status.phase}; its value is {run.value():.4f}")


def list_jobs() -> None:
    """Print the jobs that have the label of the decorator."""
    for run in posttrain.Client().list(labels="example=async-jobs"):
        print(f"  {run.name}  {run.status.phase}")


if __name__ == "__main__":
    runs = submit_and_follow()
    attach(runs[0].name)
    list_jobs()
    for run in runs:
        run.delete()
