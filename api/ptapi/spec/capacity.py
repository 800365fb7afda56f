"""The chips of a job and how they are obtained."""

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import Image, PositiveInt, SpecModel

Flag = Annotated[str, Field(max_length=1024, pattern=r"^--[^\s]+$")]
XlaFlag = Annotated[str, Field(max_length=256, pattern=r"^--xla_[a-z0-9_]+=[^\s]+$")]
Reservation = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[-a-zA-Z0-9_./:]+$")]
Zone = Annotated[str, Field(max_length=63, pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z0-9]+$")]
CapacityType = Literal["existing", "reservation", "spot", "flexStart", "queuedProvisioning", "onDemand"]


class Accelerator(SpecModel):
    """The chips of the job."""

    type: Annotated[str, Field(min_length=3, max_length=32, pattern=r"^[a-z0-9][a-z0-9-]*$")]
    """`v5p-128` (TensorCores: 64 chips), `v6e-16` (chips), `tpu7x-128`, … or `cpu-8` (8 virtual devices)."""
    slices: Annotated[int, Field(ge=1, le=512)] = 1
    """Slices of that type, joined over the data-centre network."""
    topology: Annotated[str, Field(max_length=32, pattern=r"^[0-9]+x[0-9]+(x[0-9]+)?$")] | None = None
    """Shape of a slice, if several shapes have this many chips. Unset: the usual one."""
    xla_flags: Annotated[list[XlaFlag], Field(max_length=64)] = []
    """Flags of the TPU compiler, `--xla_name=value`, which override those that posttrain sets for this generation
    (docs/reference/accelerators.md) and add others; for trainers, Pathways' proxy and preflight alike."""


class CapacityOption(SpecModel):
    """One way to obtain the chips."""

    type: CapacityType
    """`existing`: nodes that already exist. For the others the operator creates one GKE node pool per slice:
    from a reservation, of spot VMs, by flex-start (the pool grows when Google has capacity, at most 7 days), by
    flex-start with queued provisioning (a ProvisioningRequest: all nodes at once, no pods before), or on demand."""
    reservation: Reservation | None = None
    """Name or path of the reservation (`…/reservationBlocks/…` for a block), for `reservation`."""
    wait_seconds: PositiveInt | None = None
    """Try the next zone or option after this long. Unset: wait indefinitely on the last option, 15 minutes on others. A
    definite refusal (no capacity, no quota) moves on at once."""
    zones: Annotated[list[Zone], Field(max_length=16)] = []
    """Zones to try, in order. Empty: the cluster's."""


class Pathways(SpecModel):
    """One controller for all chips (Pathways)."""

    enabled: Literal["auto"] | bool = "auto"
    """`true`: one trainer on a CPU node drives all chips. `false`: one trainer per host. `auto`: `false`, until runs
    on TPUs show which is better for reinforcement learning on several hosts."""
    headless: bool = False
    """Start only the Pathways servers; `ptctl workload connect` prints how your own program reaches the chips. The
    job runs until it is deleted or suspended, or its deadline passes."""
    elastic_slices: Annotated[int, Field(ge=0, le=512)] = 0
    """How many slices may be missing while the program continues (pathwaysutils' elastic training). A lost slice's
    workers restart by themselves, at most `runPolicy.maxRestarts` times for failures of their own."""
    server_image: Image | None = None
    """Image of Pathways' resource manager and workers. Unset: the operator's setting; by default Google's latest."""
    proxy_image: Image | None = None
    """Image of Pathways' proxy. Unset: the operator's setting; by default Google's latest."""
    colocated_python_image: Image | None = None
    """Image of a sidecar that runs Python next to every worker (colocated Python). Unset: none."""
    server_args: Annotated[list[Flag], Field(max_length=64)] = []
    """Further flags of the resource manager."""
    proxy_args: Annotated[list[Flag], Field(max_length=64)] = []
    """Further flags of the proxy; XLA's flags belong here, because the proxy compiles."""
    worker_args: Annotated[list[Flag], Field(max_length=64)] = []
    """Further flags of the workers."""
