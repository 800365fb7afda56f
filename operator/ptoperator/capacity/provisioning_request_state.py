"""The state of a job's ProvisioningRequest. Pure.

The conditions are those of autoscaling.x-k8s.io/v1. `Provisioned` that is False carries GKE's estimate of the wait.
`BookingExpired` stays True beside pods that took the nodes in time, so it is ignored once they have.
"""

from dataclasses import dataclass

from ptkube.objects import condition, is_deleting, true_condition
from ptkube.resources import POD_TEMPLATES, PROVISIONING_REQUESTS, Manifest
from ptoperator.kube.actions import Delete, deletion

_REFUSALS = ("Failed", "CapacityRevoked", "BookingExpired")
_PROGRESS = ("Provisioned", "Accepted")


@dataclass(frozen=True)
class ProvisioningRequestState:
    """The request and the PodTemplate that it names; None: not there."""

    request: Manifest | None = None
    template: Manifest | None = None

    @property
    def exists(self) -> bool:
        """Return True if either object exists."""
        return self.request is not None or self.template is not None

    @property
    def is_being_deleted(self) -> bool:
        """Return True if either object is being deleted."""
        return any(each is not None and is_deleting(each) for each in (self.request, self.template))

    @property
    def is_provisioned(self) -> bool:
        """Return True if all nodes are there."""
        return self._holds("Provisioned") is not None

    @property
    def refusal(self) -> tuple[str, str] | None:
        """Return the condition that says why no nodes come, and its message; None if there is none."""
        refusals = ((kind, self._holds(kind)) for kind in _REFUSALS)
        return next(((kind, _condition_message(refusal)) for kind, refusal in refusals if refusal is not None), None)

    @property
    def revoked(self) -> str:
        """Say that the nodes were there and were taken away; empty if not."""
        revoked = self._holds("CapacityRevoked")
        return f"{self.description} was CapacityRevoked ({_condition_message(revoked)})" if revoked is not None else ""

    @property
    def latest_message(self) -> str:
        """Return GKE's latest message while the nodes are not there; empty before the first."""
        latest = next(filter(None, (condition(self.request or {}, kind) for kind in _PROGRESS)), None)
        return f"{latest['type']}={latest['status']}, {_condition_message(latest)}" if latest else ""

    @property
    def description(self) -> str:
        """Return `ProvisioningRequest NAME`; empty if nothing exists."""
        item = self.request or self.template
        return f"{item['kind']} {item['metadata']['name']}" if item else ""

    def deletions(self) -> tuple[Delete, ...]:
        """Delete the request, then the template that it needs."""
        pairs = ((PROVISIONING_REQUESTS, self.request), (POD_TEMPLATES, self.template))
        return tuple(
            deletion(resource, each, each["metadata"]["namespace"])
            for resource, each in pairs
            if each is not None and not is_deleting(each)
        )

    def _holds(self, kind: str) -> Manifest | None:
        return true_condition(self.request or {}, kind)


NO_REQUEST = ProvisioningRequestState()


def _condition_message(condition: Manifest) -> str:
    """Return `ResizeRequestFailed: there is no capacity`."""
    return ": ".join(each for each in (condition.get("reason"), condition.get("message")) if each)
