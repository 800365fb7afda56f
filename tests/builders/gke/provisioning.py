"""GKE's answers to ProvisioningRequests, on a cluster in memory: what the cluster autoscaler does with their conditions
and with the nodes of the pool that their pods name."""

from dataclasses import dataclass
from typing import Any

from tests.builders.gke.model import GkeModel

from ptkube import timestamps
from ptkube.resources import POD_TEMPLATES, PROVISIONING_REQUESTS, Manifest
from ptoperator.render.pods.pod import pools_of


@dataclass
class Queue:
    """api: the cluster's objects. model: its node pools."""

    api: Any
    model: GkeModel

    @property
    def requests(self) -> list[Manifest]:
        items: list[Manifest] = self.api.kinds(PROVISIONING_REQUESTS.kind)
        return items

    def accept(self, request: Manifest, wait: str = "") -> None:
        self.say(request, "Accepted", "SuccessfullyQueued", "Provisioning Request was successfully queued.")
        if wait:
            self.say(request, "Provisioned", "ResizeRequestWaiting", wait, "False")

    def provision(self, request: Manifest) -> None:
        """All nodes come at once, where the pool that the template names is there to take them."""
        (pods,) = request["spec"]["podSets"]
        template = self.api.find(POD_TEMPLATES, pods["podTemplateRef"]["name"])
        (pool,) = pools_of(template["template"]["spec"]) if template else ("",)
        if pool not in self.model.pools or self.model.pools[pool].state != "RUNNING":
            self.say(request, "Failed", "NodePoolNotFound", f"no node pool {pool!r} for these pods")
            return
        self.model.resize(pool, pods["count"])
        self.say(request, "Provisioned", "Provisioned", "Provisioning Request was successfully provisioned.")

    def revoke(self, request: Manifest) -> None:
        """The nodes had their time."""
        for pool in list(self.model.pools):
            self.model.resize(pool, 0)
        self.say(request, "CapacityRevoked", "NodesDeleted", "7 days are over")

    def say(self, request: Manifest, kind: str, reason: str, message: str, status: str = "True") -> None:
        conditions = request.setdefault("status", {}).setdefault("conditions", [])
        conditions[:] = [each for each in conditions if each["type"] != kind]
        time = timestamps.to_text(self.api.now)
        conditions.append(
            {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": time}
        )
        self.api.put(PROVISIONING_REQUESTS, request)
