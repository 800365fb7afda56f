"""How the chips of a job are obtained."""

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import PositiveInt, SpecModel

Reservation = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[-a-zA-Z0-9_./:]+$")]
Zone = Annotated[str, Field(max_length=63, pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z0-9]+$")]
CapacityType = Literal["existing", "reservation", "spot", "flexStart", "queuedProvisioning", "onDemand"]


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
