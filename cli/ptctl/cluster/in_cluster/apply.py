"""Apply objects of any kind, and leave alone what others manage.

Server-side apply as the field manager `ptctl`: it may be repeated at any moment, and states only its own fields.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ptctl.cluster.in_cluster.objects import MAKER
from ptctl.errors import CliError
from ptkube.client import Kube
from ptkube.errors import ApiError, NotFound
from ptkube.objects import label
from ptkube.resources import CRDS, Manifest, Resource
from ptoperator.kube import labels

FIELD_MANAGER = "ptctl"
_ESTABLISHED_S = 60.0
_WEBHOOK_S = 300.0
_PAUSE_S = 1.0
_DISCOVERIES = 20
"""A new kind is served a moment after its definition is established."""


@dataclass(frozen=True)
class Applied:
    """What became of an object. outcome: created, changed, unchanged or left alone. reason: why it was left alone."""

    kind: str
    name: str
    outcome: str
    reason: str = ""


@dataclass
class Applier:
    """Applies to one cluster. sleep: waits until new kinds are served."""

    kube: Kube
    sleep: Callable[[float], None] = time.sleep
    _has_new_kinds: bool = False
    _kinds: dict[tuple[str, str], Resource] = field(default_factory=dict)

    def apply(self, body: Manifest) -> Applied:
        """Apply an object, unless others manage the existing one."""
        r = self.resource(body)
        name = body["metadata"]["name"]
        before = self._read(r, body)
        if before is not None and (reason := manager_of(before)):
            return Applied(r.kind, name, "left alone", reason)
        after = self._apply(r, body)
        if r == CRDS:
            self._has_new_kinds = True
            self._wait_until_served(name)
        if before is None:
            return Applied(r.kind, name, "created")
        is_same = before["metadata"].get("resourceVersion") == after["metadata"].get("resourceVersion")
        return Applied(r.kind, name, "unchanged" if is_same else "changed")

    def _apply(self, r: Resource, body: Manifest) -> Manifest:
        """Apply it; wait for a webhook that was installed a moment ago and does not answer yet."""
        waited = 0.0
        while True:
            try:
                return self.kube.apply(r, body, field_manager=FIELD_MANAGER)
            except ApiError as error:
                if "failed calling webhook" not in error.message or waited >= _WEBHOOK_S:
                    raise
            self.sleep(_PAUSE_S)
            waited += _PAUSE_S

    def resource(self, body: Manifest) -> Resource:
        """Return the resource of a manifest's kind. Raises CliError for one that the API server does not serve."""
        version, kind = str(body.get("apiVersion")), str(body.get("kind"))
        for _ in range(_DISCOVERIES if self._has_new_kinds else 1):
            if (version, kind) not in self._kinds:
                self._discover(version)
            if resource := self._kinds.get((version, kind)):
                return resource
            self.sleep(_PAUSE_S)
        raise CliError(f"{kind} ({version}) is not a kind of this cluster", "is its controller installed?")

    def _discover(self, version: str) -> None:
        group, _, short = version.rpartition("/")
        try:
            served = self.kube.request("GET", f"/apis/{version}" if group else f"/api/{version}")
        except NotFound:
            return
        for each in served.get("resources") or []:
            if "/" not in each["name"]:
                served_kind = Resource(group, short, each["name"], each["kind"], namespaced=each["namespaced"])
                self._kinds[version, served_kind.kind] = served_kind

    def _read(self, r: Resource, body: Manifest) -> Manifest | None:
        try:
            return self.kube.get(r, body["metadata"]["name"], body["metadata"].get("namespace"))
        except NotFound:
            return None

    def _wait_until_served(self, name: str) -> None:
        """Return when the API server serves the kind."""
        waited = 0.0
        while not _is_established(self.kube.get(CRDS, name)):
            if waited > _ESTABLISHED_S:
                raise CliError(
                    f"CustomResourceDefinition {name} is not Established after {_ESTABLISHED_S:g} s",
                    f"`kubectl describe crd {name}` says why; then the same command again",
                )
            self.sleep(0.2)
            waited += 0.2


def manager_of(body: Manifest) -> str:
    """Return who manages an object by its labels; an empty string for ptctl, and where none names a manager."""
    if release := (body["metadata"].get("annotations") or {}).get("meta.helm.sh/release-name"):
        return f"Helm release {release}"
    manager = label(body, labels.MANAGED_BY)
    return "" if manager in ("", MAKER) else manager


def _is_established(crd: Manifest) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
