"""The operator's Kubernetes client: only the calls that `rbac` lists, each counted.

A call that is not listed is a mistake in our code: it fails here, before a cluster with RBAC would reject it.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from ptkube.errors import ApiError
from ptkube.resources import PODS, Manifest, Resource
from ptoperator.kube.rbac import is_allowed

T = TypeVar("T")
_READS = ("get", "list")
OnCall = Callable[[str, str, str], None]
"""Called after every call: verb, resource (with its subresource), and `ok` or the error's name."""
OnObject = Callable[[Resource, Manifest], object]
"""Called with every object that the API server answers."""


class UnlistedCall(Exception):
    """The operator's own code makes a call that `rbac` does not list."""


class KubeReader(Protocol):
    """The reads of `ptkube.client.Kube` that the operator uses."""

    def get(self, r: Resource, name: str, namespace: str | None = None, /) -> Manifest:
        """Return one object. Raises NotFound."""

    def get_subresource(self, r: Resource, name: str, subresource: str, namespace: str | None = None, /) -> Manifest:
        """Return a subresource of one object."""

    def list(
        self, r: Resource, namespace: str | None = None, /, *, labels: str | None = None, fields: str | None = None
    ) -> Any:
        """Return the objects that match a label and a field selector, as `items`."""

    def pod_logs(
        self, name: str, namespace: str, /, *, container: str | None, tail: int | None, timestamps: bool
    ) -> Iterator[str]:
        """Return the last lines of a container's log."""


class KubeClient(KubeReader, Protocol):
    """Its writes, too."""

    def create(self, r: Resource, body: Manifest, /) -> Manifest:
        """Create an object. Raises AlreadyExists."""

    def patch(self, r: Resource, name: str, namespace: str | None, body: Manifest, /) -> Manifest:
        """Apply a merge patch to an object."""

    def delete(self, r: Resource, name: str, namespace: str | None = None, /, *, uid: str | None = None) -> None:
        """Delete an object. Raises Conflict if its uid is another one."""

    def replace(self, r: Resource, body: Manifest, /) -> Manifest:
        """Replace an object. Raises Conflict if it changed since it was read."""

    def replace_status(self, r: Resource, body: Manifest, /) -> Manifest:
        """Replace the status of an object. Raises Conflict if the object changed since it was read."""


class Client:
    """Safe to share between threads, like the client it wraps. check: raises an ApiError if nothing may be written."""

    def __init__(
        self,
        kube: KubeClient,
        on_call: OnCall = lambda verb, resource, outcome: None,
        check: Callable[[], None] = lambda: None,
        on_object: OnObject = lambda resource, item: None,
    ) -> None:
        self._kube = kube
        self._on_call = on_call
        self._check = check
        self._on_object = on_object

    def get(self, r: Resource, name: str, namespace: str | None = None, /) -> Manifest:
        """Return one object. Raises NotFound."""
        return self._answer("get", r, lambda: self._kube.get(r, name, namespace))

    def get_subresource(self, r: Resource, name: str, subresource: str, namespace: str | None = None, /) -> Manifest:
        """Return a subresource of one object."""
        return self._call("get", r, lambda: self._kube.get_subresource(r, name, subresource, namespace), subresource)

    def pod_logs(
        self, name: str, namespace: str, /, *, container: str | None, tail: int | None, timestamps: bool
    ) -> Iterator[str]:
        """Return the last lines of a container's log."""

        def read() -> Iterator[str]:
            lines = self._kube.pod_logs(name, namespace, container=container, tail=tail, timestamps=timestamps)
            return iter(list(lines))

        return self._call("get", PODS, read, "log")

    def list(
        self, r: Resource, namespace: str | None = None, /, *, labels: str | None = None, fields: str | None = None
    ) -> Any:
        """Return the objects that match a label and a field selector."""
        answer = self._call("list", r, lambda: self._kube.list(r, namespace, labels=labels, fields=fields))
        for item in answer.items:
            self._on_object(r, item)
        return answer

    def create(self, r: Resource, body: Manifest, /) -> Manifest:
        """Create an object. Raises AlreadyExists."""
        return self._answer("create", r, lambda: self._kube.create(r, body))

    def patch(self, r: Resource, name: str, namespace: str | None, body: Manifest, /) -> Manifest:
        """Apply a merge patch to an object."""
        return self._answer("patch", r, lambda: self._kube.patch(r, name, namespace, body))

    def delete(self, r: Resource, name: str, namespace: str | None = None, /, *, uid: str | None = None) -> None:
        """Delete an object. Raises Conflict if its uid is another one."""
        self._call("delete", r, lambda: self._kube.delete(r, name, namespace, uid=uid))

    def replace(self, r: Resource, body: Manifest, /) -> Manifest:
        """Replace an object. Raises Conflict if it changed since it was read."""
        return self._answer("update", r, lambda: self._kube.replace(r, body))

    def replace_status(self, r: Resource, body: Manifest, /) -> Manifest:
        """Replace the status of an object. Raises Conflict if the object changed since it was read."""
        return self._answer("update", r, lambda: self._kube.replace_status(r, body), "status")

    def _answer(self, verb: str, r: Resource, send: Callable[[], Manifest], subresource: str = "") -> Manifest:
        item = self._call(verb, r, send, subresource)
        self._on_object(r, item)
        return item

    def _call(self, verb: str, r: Resource, send: Callable[[], T], subresource: str = "") -> T:
        name = f"{r.plural}/{subresource}" if subresource else r.plural
        if not is_allowed(verb, r, subresource):
            raise UnlistedCall(f"{verb} {name} is not listed; hint: add it to ptoperator/kube/rbac.py with its reason")
        if verb not in _READS:
            self._check()
        try:
            answer = send()
        except ApiError as error:
            self._on_call(verb, name, type(error).__name__)
            raise
        self._on_call(verb, name, "ok")
        return answer
