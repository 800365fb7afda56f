"""The chips of a job."""

from typing import Annotated

from pydantic import Field

from ptapi.spec.base import AcceleratorType, SpecModel

XlaFlag = Annotated[str, Field(max_length=256, pattern=r"^--xla_[a-z0-9_]+=[^\s]+$")]


class Accelerator(SpecModel):
    """The chips of the job."""

    type: AcceleratorType
    """`v5p-128` (TensorCores: 64 chips), `v6e-16` (chips), `tpu7x-128`, … or `cpu-8` (8 virtual devices)."""
    slices: Annotated[int, Field(ge=1, le=512)] = 1
    """Slices of that type, joined over the data-centre network."""
    min_slices: Annotated[int, Field(ge=1, le=512)] | None = None
    """Fewest slices on which the run goes on, with the same batch, when others are lost; the trainer restarts in place.
    As many as `slices`: it restarts in place if such a job could go on with fewer. Unset: a lost host restarts all
    pods."""
    topology: Annotated[str, Field(max_length=32, pattern=r"^[0-9]+x[0-9]+(x[0-9]+)?$")] | None = None
    """Shape of a slice, if several shapes have this many chips. Unset: the usual one."""
    dynamic_slicing: bool = False
    """Slices of tpu7x that Kueue and GKE form of sub-blocks when the job is admitted (GKE dynamic slicing), larger
    than 4x4x4 or a part of it. Needs `queue`."""
    xla_flags: Annotated[list[XlaFlag], Field(max_length=64)] = []
    """Flags of the TPU compiler, `--xla_name=value`, which override those that posttrain sets for this generation
    (docs/reference/accelerators.md) and add others; for trainers, Pathways' proxy and preflight alike."""
