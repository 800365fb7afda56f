"""Local copies of the watched kinds: jobs, their JobSets, their pods; and of the events that tell of refused creations.

A reconcile reads these and not the API server. A watch may be late by any time, so what would do harm on an old state
is read again first: `controller.freshness` says what. Left out: objects without a job's label, such as another owner's
JobSet, which no watch tells of.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptkube.client import Kube, ListResult
from ptkube.errors import NotFound
from ptkube.informer import Informer
from ptkube.objects import label
from ptkube.resources import EVENTS, JOBSETS, PODS, POSTTRAINJOBS, Manifest, Resource
from ptkube.watch_cache import LocalCopy
from ptoperator.failures.pod_creation import REASONS
from ptoperator.kube import labels
from ptoperator.kube.audited_client import KubeReader

WATCHED = (POSTTRAINJOBS, JOBSETS, PODS)
_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "labels",
    "annotations",
    "ownerReferences",
)


def empty_copy(resource: Resource) -> LocalCopy:
    """Return a copy of a watched kind that nothing keeps current."""
    return LocalCopy(resource, trim=_TRIMS[resource], index=_INDEXES[resource])


def informers(kube: Kube, namespaces: Sequence[str], stop: threading.Event) -> dict[tuple[Resource, str], Informer]:
    """Return an informer of the JobSets and of the pods of each namespace; of no namespaces one for all."""
    return {
        (resource, namespace): Informer(
            kube,
            resource,
            stop,
            namespace=namespace or None,
            labels=labels.JOB,
            trim=_TRIMS[resource],
            index=_INDEXES[resource],
        )
        for resource in (JOBSETS, PODS)
        for namespace in namespaces or ("",)
    }


def refusal_informers(kube: Kube, namespaces: Sequence[str], stop: threading.Event) -> list[Informer]:
    """Return the informers of what controllers say when the API server refuses to create Jobs or pods."""
    return [
        Informer(kube, EVENTS, stop, namespace=namespace or None, fields=f"reason={reason}", **_REFUSALS)
        for reason in REASONS.values()
        for namespace in namespaces or ("",)
    ]


def empty_refusals() -> LocalCopy:
    """Return a copy of such events that nothing keeps current."""
    return LocalCopy(EVENTS, **_REFUSALS)


class Copies:
    """The copies by kind and namespace; the empty namespace stands for all. refusals: events of refused creations."""

    def __init__(self, copies: Mapping[tuple[Resource, str], LocalCopy], refusals: Sequence[LocalCopy] = ()) -> None:
        self._copies = copies
        self._refusals = refusals

    def of(self, resource: Resource, namespace: str | None) -> LocalCopy | None:
        """Return the copy that holds a namespace's objects of a kind, or None if nobody keeps one."""
        return self._copies.get((resource, namespace or "")) or self._copies.get((resource, ""))

    def are_synced(self, namespace: str) -> bool:
        """Return True once a namespace's JobSets and pods were listed: what is missing before may only be unread."""
        return all(copy.synced.is_set() for copy in (self.of(each, namespace) for each in (JOBSETS, PODS)) if copy)

    def may_be_refused(self, namespace: str, owners: Iterable[str]) -> bool:
        """Return False if no event tells that the API server refuses what one of these objects owns.

        True also while there is no copy to ask, as where an older chart's role does not let events be watched.
        """
        is_known = bool(self._refusals) and all(copy.synced.is_set() for copy in self._refusals)
        return not is_known or any(copy.indexed(namespace, owner) for owner in owners for copy in self._refusals)

    def record(self, resource: Resource, item: Manifest) -> Manifest:
        """Take over an answer of the API server, so that no reconcile is older than what was read or written before.

        Return the newest that is known of the object, as the copies keep it.
        """
        copy = self.of(resource, item["metadata"].get("namespace"))
        if copy is None:
            return item
        return copy.record(item) if _is_watched(resource, item) else copy.trim(item)


@dataclass(frozen=True)
class CachedReader:
    """Reads watched kinds from their copies, but for the `live` ones; all else from the API server."""

    kube: KubeReader
    copies: Copies
    live: frozenset[Resource] = frozenset()

    def get(self, r: Resource, name: str, namespace: str | None = None, /) -> Manifest:
        """Return one object. Raises NotFound."""
        copy = self.copies.of(r, namespace)
        if copy is None:
            return self.kube.get(r, name, namespace)
        item = copy.get(namespace or "", name)
        if r in self.live:
            return self._read(copy, item, name, namespace)
        if item is None:
            raise NotFound(404, "NotFound", f'{r.plural} "{name}" not found')
        return item

    def _read(self, copy: LocalCopy, known: Manifest | None, name: str, namespace: str | None) -> Manifest:
        try:
            return self.copies.record(copy.resource, self.kube.get(copy.resource, name, namespace))
        except NotFound:
            if known is not None:
                copy.forget(known)
            raise

    def get_subresource(self, r: Resource, name: str, subresource: str, namespace: str | None = None, /) -> Manifest:
        """Return a subresource of one object."""
        return self.kube.get_subresource(r, name, subresource, namespace)

    def list(
        self, r: Resource, namespace: str | None = None, /, *, labels: str | None = None, fields: str | None = None
    ) -> ListResult:
        """Return the objects that match a label and a field selector; of a watched kind those of one job."""
        copy = self.copies.of(r, namespace)
        if copy is None or r is POSTTRAINJOBS or r in self.live:
            items = self.kube.list(r, namespace, labels=labels, fields=fields).items
            return ListResult([self.copies.record(r, item) for item in items], "")
        return ListResult(copy.indexed(namespace or "", str(labels).partition("=")[2]), "")

    def may_be_refused(self, namespace: str, owners: Iterable[str]) -> bool:
        """Return False if it is known that nothing is refused that these objects own; True where events are `live`."""
        return EVENTS in self.live or self.copies.may_be_refused(namespace, owners)

    def pod_logs(
        self, name: str, namespace: str, /, *, container: str | None, tail: int | None, timestamps: bool
    ) -> Iterator[str]:
        """Return the last lines of a container's log."""
        return self.kube.pod_logs(name, namespace, container=container, tail=tail, timestamps=timestamps)


def _is_watched(resource: Resource, item: Manifest) -> bool:
    return resource is POSTTRAINJOBS or _job_name(item) != ""


def _job_name(item: Manifest) -> str:
    return label(item, labels.JOB)


def _without_managed_fields(job: Manifest) -> Manifest:
    return {**job, "metadata": {key: value for key, value in job["metadata"].items() if key != "managedFields"}}


def _trim_jobset(jobset: Manifest) -> Manifest:
    """Return a JobSet without what its pods run."""
    spec = jobset["spec"]
    jobs = [_trim_job(each) for each in spec.get("replicatedJobs") or []]
    manager = {"managedBy": spec["managedBy"]} if spec.get("managedBy") else {}
    return {**_outline(jobset), "spec": {"suspend": bool(spec.get("suspend")), **manager, "replicatedJobs": jobs}}


def _trim_job(replicated: Manifest) -> Manifest:
    pod = replicated["template"]["spec"]["template"]["spec"]
    placement: Manifest = {key: pod[key] for key in ("affinity", "tolerations") if key in pod}
    kept: Manifest = {key: replicated[key] for key in ("name", "replicas") if key in replicated}
    return {**kept, "template": {"spec": {"template": {"spec": placement}}}}


def _trim_pod(pod: Manifest) -> Manifest:
    """Return the parts of a pod that are used: a slice may have thousands."""
    spec = pod.get("spec") or {}
    amounts = {
        kind: [{"name": each["name"], "resources": each.get("resources")} for each in spec.get(kind) or []]
        for kind in ("initContainers", "containers")
    }
    return {**_outline(pod), "spec": {"nodeName": spec.get("nodeName"), **amounts}}


def _outline(item: Manifest) -> Manifest:
    meta = item["metadata"]
    kept: Manifest = {key: item[key] for key in ("apiVersion", "kind") if key in item}
    kept["metadata"] = {key: meta[key] for key in _METADATA if key in meta}
    return {**kept, "status": item.get("status") or {}}


def _trim_event(event: Manifest) -> Manifest:
    meta = {key: event["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
    return {"metadata": meta, "involvedObject": {"name": (event.get("involvedObject") or {}).get("name")}}


_TRIMS = {POSTTRAINJOBS: _without_managed_fields, JOBSETS: _trim_jobset, PODS: _trim_pod}
_INDEXES = {POSTTRAINJOBS: lambda job: "", JOBSETS: _job_name, PODS: _job_name}
_REFUSALS: dict[str, Any] = {
    "trim": _trim_event,
    "index": lambda event: str(event["involvedObject"]["name"] or ""),
}
