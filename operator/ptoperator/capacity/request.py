"""The input and output of `provide`."""

from dataclasses import dataclass
from datetime import datetime

from ptapi.status import CapacityStatus, FailureStatus
from ptoperator.capacity.cloud import Cloud, CloudAction
from ptoperator.capacity.provisioning_request_state import NO_REQUEST, ProvisioningRequestState
from ptoperator.capacity.waiting_line.fair_order import NO_COMPETITION, CompetingJobs
from ptoperator.kube.actions import Action
from ptoperator.render import Layout


@dataclass(frozen=True)
class CapacityRequest:
    """A job, its capacity so far, and the cloud; None: the operator knows no cloud.

    competing: other jobs that want the same chips. provisioning: the state of its ProvisioningRequest. rejection: the
    API server's message when it rejected an object of this job.
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
    """What `provide` decided.

    ready: pods may be created now, on these pools (empty: on any nodes that fit). is_queued_provisioning: their nodes
    came by a ProvisioningRequest. message: what the job waits for. failure: nothing more is tried. is_soon: the status
    is a decision that the next reconcile carries out. is_turn: the status gives the job its turn. in_line_s: the job
    waits in its queue, and looks again after so many seconds.
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
    in_line_s: float | None = None
