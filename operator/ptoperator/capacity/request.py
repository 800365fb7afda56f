"""What capacity is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ptapi.status import CapacityStatus, FailureStatus
from ptoperator.capacity.cloud import Cloud, CloudAction
from ptoperator.capacity.fair_queue import NO_COMPETITION, CompetingJobs
from ptoperator.capacity.provisioning_state import NO_REQUEST, ProvisioningRequestState
from ptoperator.kube.actions import Action
from ptoperator.render import Layout


@dataclass(frozen=True)
class CapacityRequest:
    """A job, what its status says of its capacity so far, and the cloud; None: the operator knows no cloud.

    crowd: other jobs that want the same chips. booking: what there is of its ProvisioningRequest. obstacle: what the
    API server said when it refused an object of this job.
    """

    layout: Layout
    capacity: CapacityStatus
    cloud: Cloud | None
    now: datetime
    competing: CompetingJobs = NO_COMPETITION
    provisioning: ProvisioningRequestState = NO_REQUEST
    rejection: str = ""


@dataclass(frozen=True)
class Decision:
    """ready: pods may be made now, on these pools (empty: on any nodes that fit). is_booked: their nodes came by a
    ProvisioningRequest. message: what it waits for.

    failure: nothing more will be tried. is_soon: the status is a decision that the next look carries out.
    is_turn: the status gives the job its turn in a line. ahead: it stands in line, behind so many.
    """

    ready: bool
    status: CapacityStatus
    actions: tuple[Action | CloudAction, ...] = ()
    pools: tuple[str, ...] = ()
    is_queued_provisioning: bool = False
    message: str = ""
    failure: FailureStatus | None = None
    is_soon: bool = False
    is_turn: bool = False
    ahead: int | None = None
