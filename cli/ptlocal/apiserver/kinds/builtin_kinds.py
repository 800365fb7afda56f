"""The server's resources: one `Kind` per group, version and plural, and the table of the built-in ones.

A custom resource becomes a `Kind` too (custom_resources.py); for the verbs the only difference is `is_custom`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ptlocal.apiserver.errors import Named
from ptlocal.apiserver.kinds import builtin_schemas

Schema = dict[str, Any]
READ_WRITE = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`, as in a CRD's additionalPrinterColumns."""

    name: str
    type: str
    json_path: str
    format: str = ""
    description: str = ""
    priority: int = 0


@dataclass(frozen=True, eq=False)
class Kind:
    """One served resource. `storage` identifies its objects: two kinds with the same storage show the same objects."""

    group: str
    version: str
    plural: str
    kind: str
    schema: Schema
    namespaced: bool = True
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    has_status: bool = False
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = READ_WRITE
    storage: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Field selectors beyond metadata.name and metadata.namespace: label -> path."""
    columns: tuple[Column, ...] = ()
    has_generation: bool = False
    default_policy: str = "Background"
    returns_deleted: bool = False
    allows_unconditional_update: bool = True
    is_custom: bool = False
    list_kind: str = ""
    scale: Mapping[str, str] | None = None
    dns_label_name: bool = False

    @property
    def api_version(self) -> str:
        """Return `group/version`, or the version of the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_name(self) -> str:
        """Return the kind of a list."""
        return self.list_kind or f"{self.kind}List"

    @property
    def singular_name(self) -> str:
        """Return the singular name."""
        return self.singular or self.kind.lower()

    @property
    def storage_key(self) -> str:
        """Return the key under which objects are stored."""
        return self.storage or f"{self.group}/{self.plural}"

    def named(self, name: str) -> Named:
        """Return the name that errors use for an object of the kind."""
        return Named(self.group, self.plural, self.kind, name)


_EVENT_FIELDS = {
    **{
        f"involvedObject.{k}": f"involvedObject.{k}"
        for k in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    },
    "reason": "reason",
    "reportingComponent": "reportingComponent",
    "source": "source.component",
    "type": "type",
}
_REGARDING_FIELDS = {
    **{
        f"regarding.{k}": f"involvedObject.{k}"
        for k in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    },
    "reason": "reason",
    "reportingController": "reportingComponent",
    "type": "type",
}
_POD_FIELDS = {
    label: label
    for label in (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    )
}


def _kind(group: str, plural: str, kind: str, definition: str = "", **more: Any) -> Kind:
    return Kind(group, "v1", plural, kind, builtin_schemas.schema_of(definition or kind), **more)


def builtin_kinds() -> list[Kind]:
    """Return the built-in kinds."""
    rbac = "rbac.authorization.k8s.io"
    review = "authorization.k8s.io"
    return [
        _kind(
            "",
            "namespaces",
            "Namespace",
            namespaced=False,
            short_names=("ns",),
            has_status=True,
            subresources=("finalize",),
            fields={"status.phase": "status.phase"},
            dns_label_name=True,
            returns_deleted=True,
        ),
        _kind(
            "",
            "pods",
            "Pod",
            short_names=("po",),
            categories=("all",),
            has_status=True,
            has_generation=True,
            subresources=("binding", "eviction", "exec", "log"),
            fields=_POD_FIELDS,
            returns_deleted=True,
        ),
        _kind(
            "",
            "services",
            "Service",
            short_names=("svc",),
            categories=("all",),
            has_status=True,
            fields={"spec.clusterIP": "spec.clusterIP", "spec.type": "spec.type"},
            returns_deleted=True,
            dns_label_name=True,
        ),
        _kind("", "configmaps", "ConfigMap", short_names=("cm",)),
        _kind("", "secrets", "Secret", fields={"type": "type"}),
        _kind("", "events", "Event", "CoreEvent", short_names=("ev",), fields=_EVENT_FIELDS),
        _kind(
            "",
            "nodes",
            "Node",
            namespaced=False,
            short_names=("no",),
            has_status=True,
            fields={"spec.unschedulable": "spec.unschedulable"},
        ),
        _kind("", "serviceaccounts", "ServiceAccount", short_names=("sa",), returns_deleted=True),
        _kind(
            "",
            "persistentvolumeclaims",
            "PersistentVolumeClaim",
            short_names=("pvc",),
            has_status=True,
            returns_deleted=True,
        ),
        _kind(
            "",
            "persistentvolumes",
            "PersistentVolume",
            namespaced=False,
            short_names=("pv",),
            has_status=True,
            returns_deleted=True,
        ),
        _kind("", "endpoints", "Endpoints", short_names=("ep",)),
        _kind(
            "events.k8s.io",
            "events",
            "Event",
            "EventsEvent",
            short_names=("ev",),
            storage="/events",
            fields=_REGARDING_FIELDS,
        ),
        _kind("discovery.k8s.io", "endpointslices", "EndpointSlice"),
        _kind(
            "batch",
            "jobs",
            "Job",
            categories=("all",),
            has_status=True,
            has_generation=True,
            fields={"status.successful": "status.succeeded"},
            default_policy="Orphan",
        ),
        _kind(
            "apps",
            "deployments",
            "Deployment",
            short_names=("deploy",),
            categories=("all",),
            has_status=True,
            has_generation=True,
        ),
        _kind(
            "policy",
            "poddisruptionbudgets",
            "PodDisruptionBudget",
            short_names=("pdb",),
            has_status=True,
            has_generation=True,
        ),
        _kind("networking.k8s.io", "networkpolicies", "NetworkPolicy", short_names=("netpol",), has_generation=True),
        _kind("coordination.k8s.io", "leases", "Lease"),
        _kind("scheduling.k8s.io", "priorityclasses", "PriorityClass", namespaced=False, short_names=("pc",)),
        _kind(
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            "CustomResourceDefinition",
            namespaced=False,
            short_names=("crd", "crds"),
            categories=("api-extensions",),
            has_status=True,
            has_generation=True,
        ),
        _kind(rbac, "roles", "Role"),
        _kind(rbac, "rolebindings", "RoleBinding"),
        _kind(rbac, "clusterroles", "ClusterRole", namespaced=False),
        _kind(rbac, "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
        _kind(review, "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False, verbs=("create",)),
        _kind(review, "selfsubjectrulesreviews", "SelfSubjectRulesReview", namespaced=False, verbs=("create",)),
        _kind(review, "subjectaccessreviews", "SubjectAccessReview", namespaced=False, verbs=("create",)),
    ]
