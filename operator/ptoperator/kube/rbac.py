"""Every API call that the operator may make, and why: the chart's RBAC rules are generated from this table.

`audited_client` rejects a call that is not listed, in tests as in a cluster, and a test fails on a line that nothing
uses; so the chart grants what the code calls and nothing else. Left out: `/version`, which everybody may read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ptkube.resources import (
    ADMISSION_CHECKS,
    AUTOSCALERS,
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    EVENTS,
    HTTP_ROUTES,
    HTTP_SCALED_OBJECTS,
    INFERENCE_POOLS,
    INGRESSES,
    JOBS,
    JOBSETS,
    LEASES,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    POD_MONITORINGS,
    POD_TEMPLATES,
    PODS,
    POSTTRAINJOBS,
    PRIORITY_CLASSES,
    PROVISIONING_REQUESTS,
    SANDBOX_CLAIMS,
    SANDBOX_TEMPLATES,
    SANDBOX_WARM_POOLS,
    SECRETS,
    SERVICES,
    VISIBLE_QUEUES,
    WORKLOADS,
    Manifest,
    Resource,
)


@dataclass(frozen=True)
class Right:
    """A permission and its reason.

    verbs: what our own code calls. watched: kopf or an informer lists and watches it too. admission: needed by a check
    of the API server, called by nobody. only_with: the chart's value without which it is not granted.
    """

    resource: Resource
    verbs: tuple[str, ...]
    why: str
    subresource: str = ""
    watched: bool = False
    admission: bool = False
    only_with: str = ""

    @property
    def granted(self) -> tuple[str, ...]:
        """Return the verbs in Kubernetes' order."""
        wanted = {*self.verbs, *(("list", "watch") if self.watched else ())}
        return tuple(verb for verb in _ORDER if verb in wanted)

    @property
    def name(self) -> str:
        """Return the resource, with its subresource, as a rule names it."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


PENDING = "pendingworkloads"
_ORDER = ("get", "list", "watch", "create", "update", "patch", "delete")

IN_NAMESPACES = (
    Right(
        POSTTRAINJOBS, ("get", "list", "patch", "delete"), "patch: the finalizer; delete: after their TTL", watched=True
    ),
    Right(POSTTRAINJOBS, ("update",), "what the operator observed", "status"),
    Right(POSTTRAINJOBS, ("update",), "owner references that block deletion", "finalizers", admission=True),
    Right(JOBSETS, ("get", "create", "patch", "delete"), "patch: suspend and resume", watched=True),
    Right(
        JOBS,
        ("get", "list", "create", "delete"),
        "staging and preflight; Jobs bound to previous pools, or of servers that ended; which Job lacks pods",
    ),
    Right(CONFIGMAPS, ("get", "create"), "the job as its pods read it"),
    Right(SECRETS, ("create",), "the token that a job's trainer and its samplers share; none is ever read"),
    Right(PODS, ("list", "delete"), "delete: the pods of a hung run", watched=True),
    Right(
        SANDBOX_CLAIMS,
        ("list", "create", "delete"),
        "a job's sandboxes; no effect without Agent Sandbox",
        only_with="sandboxes.enabled",
    ),
    Right(SANDBOX_TEMPLATES, ("create",), "their pods", only_with="sandboxes.enabled"),
    Right(
        SANDBOX_WARM_POOLS,
        ("create", "patch"),
        "those kept ready; patch: none while the job does not run",
        only_with="sandboxes.enabled",
    ),
    Right(SERVICES, ("create",), "by whose name a trainer finds them", only_with="sandboxes.enabled"),
    Right(
        DEPLOYMENTS, ("get", "create", "patch"), "TensorBoard, if a job asks for it", only_with="tensorboard.servers"
    ),
    Right(SERVICES, ("get", "create", "patch"), "TensorBoard's", only_with="tensorboard.servers"),
    Right(
        INGRESSES,
        ("get", "create", "patch"),
        "TensorBoard's, if it is reached from outside",
        only_with="tensorboard.ingress.domain",
    ),
    Right(
        HTTP_ROUTES,
        ("get", "create", "patch"),
        "TensorBoard's, if it is reached through a Gateway",
        only_with="tensorboard.ingress.gateway.name",
    ),
    *(
        Right(
            kind,
            ("get", "create"),
            f"of a model's server, if a job asks for it: {kind.kind}",
            only_with="servers.enabled",
        )
        for kind in (
            DEPLOYMENTS,
            SERVICES,
            POD_MONITORINGS,
            AUTOSCALERS,
            HTTP_SCALED_OBJECTS,
            INFERENCE_POOLS,
            HTTP_ROUTES,
        )
    ),
    Right(
        PROVISIONING_REQUESTS,
        ("get", "create", "delete"),
        "all nodes of a slice at once, if a job asks for queued provisioning",
        only_with="gke.cluster",
    ),
    Right(POD_TEMPLATES, ("get", "create", "delete"), "the pods of such a request", only_with="gke.cluster"),
    Right(POD_GROUPS["v1beta1"], ("create",), "all pods of a job at once or none, where it is served; of any version"),
    Right(PODS, ("get",), "MaxText's progress; init containers of a pod that cannot start", "log"),
    Right(WORKLOADS, ("list",), "why a job waits in Kueue's queue; no effect without Kueue"),
    Right(WORKLOADS, ("patch",), "a priority boost for unsaved work", only_with="kueue.priorityBoost"),
    Right(WORKLOADS, ("update",), "the answer that a job's node pools are ready", "status"),
    Right(LOCAL_QUEUES, ("get",), "which ClusterQueue it waits in"),
    *(Right(queues, ("get",), "how many jobs are ahead", PENDING) for queues in VISIBLE_QUEUES),
    Right(EVENTS, ("list", "create"), "list: why pods are not created; create: what happened to a job", watched=True),
)
"""In every namespace that is served."""

IN_CLUSTER = (
    Right(CRDS, (), "kopf discovers the kinds", watched=True),
    Right(NAMESPACES, (), "kopf discovers the namespaces", watched=True),
    Right(NODES, ("get", "list"), "get: why the pods on a node failed; list: how many slices a queue has"),
    Right(PRIORITY_CLASSES, ("get",), "a job's place in a queue for chips"),
    Right(ADMISSION_CHECKS, ("get", "list"), "which of Kueue's checks asks for node pools"),
    Right(ADMISSION_CHECKS, ("update",), "that the operator answers that check", "status"),
)

IN_OWN_NAMESPACE = (Right(LEASES, ("get", "create", "update"), "which replica leads"),)
"""In the operator's own namespace."""


def is_allowed(verb: str, resource: Resource, subresource: str = "") -> bool:
    """Return True if our own code may make this call."""
    every = (*IN_NAMESPACES, *IN_CLUSTER, *IN_OWN_NAMESPACE)
    return any(
        right.resource == resource and right.subresource == subresource and verb in right.verbs for right in every
    )


def rules(rights: Sequence[Right]) -> list[Manifest]:
    """Return the RBAC rules, one per line of the table."""
    return [
        {"apiGroups": [right.resource.group], "resources": [right.name], "verbs": list(right.granted)}
        for right in rights
    ]
