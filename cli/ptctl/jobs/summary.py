"""A job in one line, with its chips counted: what one wants to read before money is spent."""

from __future__ import annotations

from ptapi import accelerators
from ptapi.spec import PostTrainJob


def summary(job: PostTrainJob) -> str:
    """`grpo of gs://… on v6e-16 (16 chips, 4 VMs)`."""
    spec = job.spec
    place = spec.accelerator
    chosen = accelerators.resolve(place.type, place.topology, place.slices)
    return f"{spec.algorithm.label} of {spec.model.uri} on {chosen.describe()}"
