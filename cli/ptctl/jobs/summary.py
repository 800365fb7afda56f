"""Summarise a job and its chip count in one line, to read before money is spent."""

from ptapi import accelerators
from ptapi.spec import PostTrainJob


def summary(job: PostTrainJob) -> str:
    """Return a line such as `grpo of gs://… on v6e-16 (16 chips, 4 VMs)`."""
    spec = job.spec
    requested = spec.accelerator
    accelerator = accelerators.resolve(requested.type, requested.topology, requested.slices)
    function = spec.runtime.function
    subject = f"{spec.algorithm.label} of {spec.model.uri}" if function is None else f"function {function.function}"
    return f"{subject} on {accelerator.describe()}"
