"""What the operator does to the cluster, as values: plan decides them, `apply` carries them out.

Every action may be repeated. Create of what is there, Delete of what is gone, are done already; that is what makes a
crash between any two of them harmless. Children are created and never applied again: see docs/decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ptkube.errors import AlreadyExists, NotFound
from ptkube.resources import Manifest, Resource


@dataclass(frozen=True)
class Create:
    """Make an object. JobSets and the job's ConfigMap are immutable, so there is nothing to bring them to later."""

    resource: Resource
    manifest: Manifest


@dataclass(frozen=True)
class Patch:
    """Change single fields of an object that others also write."""

    resource: Resource
    name: str
    namespace: str
    body: Manifest


@dataclass(frozen=True)
class Delete:
    """Delete this very object, not a later one of the same name; it goes after what it owns."""

    resource: Resource
    name: str
    namespace: str
    uid: str


@dataclass(frozen=True)
class PutStatus:
    """Replace the status of an object that others also write, if it is still as it was read."""

    resource: Resource
    manifest: Manifest


Action = Create | Patch | Delete | PutStatus


def deletion(resource: Resource, item: Manifest, namespace: str) -> Delete:
    """Of an object as it was seen."""
    return Delete(resource, item["metadata"]["name"], namespace, item["metadata"]["uid"])


class Writer(Protocol):
    """The part of `kube.Kube` that actions need."""

    def create(self, r: Resource, body: Manifest, /) -> Manifest: ...
    def patch(self, r: Resource, name: str, namespace: str | None, body: Manifest, /) -> Manifest: ...
    def delete(self, r: Resource, name: str, namespace: str | None = None, /, *, uid: str | None = None) -> None: ...
    def replace_status(self, r: Resource, body: Manifest, /) -> Manifest: ...


def apply(writer: Writer, action: Action) -> None:
    """Carry one action out. Raises ApiError; a Conflict means that what was observed is no longer so."""
    match action:
        case Create(resource, manifest):
            try:
                writer.create(resource, manifest)
            except AlreadyExists:
                return  # an earlier try got through; the next observation shows whose it is
        case Patch(resource, name, namespace, body):
            try:
                writer.patch(resource, name, namespace, body)
            except NotFound:
                return  # deleted meanwhile: the next observation decides anew
        case Delete(resource, name, namespace, uid):
            try:
                writer.delete(resource, name, namespace, uid=uid)
            except NotFound:
                return
        case PutStatus(resource, manifest):
            try:
                writer.replace_status(resource, manifest)
            except NotFound:
                return


def describe(action: Action) -> str:
    """A few words for the log: `create JobSet llama`."""
    verb = "answer" if isinstance(action, PutStatus) else type(action).__name__.lower()
    name = action.manifest["metadata"]["name"] if isinstance(action, Create | PutStatus) else action.name
    return f"{verb} {action.resource.kind} {name}"
