"""The Kubernetes kinds this project talks to, one constant each.

A `Resource` carries all that a URL needs, so no client here ever asks the server's discovery endpoint. Left out:
schemas (the server has them) and kinds nobody uses yet.
"""

from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """One kind as the API server serves it. The core group is the empty string."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Return group and version as manifests write them."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path. A namespaced kind without a namespace means all namespaces (list and watch only)."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("", "v1", "events", "Event")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
POD_TEMPLATES = Resource("", "v1", "podtemplates", "PodTemplate")
JOBS = Resource("batch", "v1", "jobs", "Job")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
INGRESSES = Resource("networking.k8s.io", "v1", "ingresses", "Ingress")
HTTP_ROUTES = Resource("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute")
INFERENCE_POOLS = Resource("inference.networking.k8s.io", "v1", "inferencepools", "InferencePool")
AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
POD_MONITORINGS = Resource("monitoring.googleapis.com", "v1", "podmonitorings", "PodMonitoring")
HTTP_SCALED_OBJECTS = Resource("http.keda.sh", "v1alpha1", "httpscaledobjects", "HTTPScaledObject")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
POD_GROUPS = {
    version: Resource("scheduling.k8s.io", version, "podgroups", "PodGroup") for version in ("v1beta1", "v1alpha2")
}
"""Kubernetes' own gangs by version, the newest first (1.37, 1.36). Served only where an administrator enables them."""
JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
SANDBOX_TEMPLATES = Resource("extensions.agents.x-k8s.io", "v1beta1", "sandboxtemplates", "SandboxTemplate")
SANDBOX_WARM_POOLS = Resource("extensions.agents.x-k8s.io", "v1beta1", "sandboxwarmpools", "SandboxWarmPool")
SANDBOX_CLAIMS = Resource("extensions.agents.x-k8s.io", "v1beta1", "sandboxclaims", "SandboxClaim")
PROVISIONING_REQUESTS = Resource("autoscaling.x-k8s.io", "v1", "provisioningrequests", "ProvisioningRequest")
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
LOCAL_QUEUES = Resource("kueue.x-k8s.io", "v1beta2", "localqueues", "LocalQueue")
ADMISSION_CHECKS = Resource("kueue.x-k8s.io", "v1beta2", "admissionchecks", "AdmissionCheck", namespaced=False)
VISIBLE_QUEUES = tuple(
    Resource("visibility.kueue.x-k8s.io", version, "localqueues", "LocalQueue") for version in ("v1beta2", "v1beta1")
)
"""Kueue's visibility API: who waits, in order. The newest version first."""
POSTTRAINJOBS = Resource("posttrain.dev", "v1alpha1", "posttrainjobs", "PostTrainJob")
