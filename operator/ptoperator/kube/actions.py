"""Changes to the cluster, as values: `plan` decides them, `apply` carries them out.

Every action may be repeated: Create of an existing object and Delete of a missing one do nothing. So a crash between
any two of them is harmless. Child objects are created and never applied again: see docs/decisions.
"""

import contextlib
import secrets
from dataclasses import dataclass

from ptkube.errors import AlreadyExists, Conflict, NotFound
from ptkube.resources import JOBSETS, SECRETS, Manifest, Resource
from ptoperator.kube.audited_client import KubeClient

_TOKEN_BYTES = 32


@dataclass(frozen=True)
class Create:
    """Create an object. JobSets and the job's ConfigMap are immutable, so they are never updated."""

    resource: Resource
    manifest: Manifest


@dataclass(frozen=True)
class CreateToken:
    """Create a Secret with a random value for `key`, drawn when it is written; one that exists keeps its own."""

    manifest: Manifest
    key: str


@dataclass(frozen=True)
class Patch:
    """Change single fields of an object that others also write."""

    resource: Resource
    name: str
    namespace: str
    body: Manifest


@dataclass(frozen=True)
class Delete:
    """Delete this object, not a later one of the same name, after the objects it owns."""

    resource: Resource
    name: str
    namespace: str
    uid: str


@dataclass(frozen=True)
class PutStatus:
    """Replace the status of an object that others also write, if it is unchanged since it was read."""

    resource: Resource
    manifest: Manifest


Action = Create | CreateToken | Patch | Delete | PutStatus


def deletion(resource: Resource, item: Manifest, namespace: str) -> Delete:
    """Return the deletion of an object as it was read."""
    return Delete(resource, item["metadata"]["name"], namespace, item["metadata"]["uid"])


def apply(client: KubeClient, action: Action) -> None:
    """Carry out one action. Raises ApiError; a Conflict means that the observed state is outdated."""
    match action:
        case Create(resource, manifest):
            try:
                client.create(resource, manifest)
            except AlreadyExists as error:
                if resource is JOBSETS:  # unknown so far, and perhaps another owner's
                    raise Conflict(error.status, "Conflict", error.message) from error
                return  # an earlier try got through
        case CreateToken(manifest, key):
            with contextlib.suppress(AlreadyExists):  # the pods read the first one
                client.create(SECRETS, {**manifest, "stringData": {key: secrets.token_urlsafe(_TOKEN_BYTES)}})
        case Patch(resource, name, namespace, body):
            try:
                client.patch(resource, name, namespace, body)
            except NotFound:
                return  # deleted meanwhile: the next observation decides anew
        case Delete(resource, name, namespace, uid):
            try:
                client.delete(resource, name, namespace, uid=uid)
            except NotFound:
                return
        case PutStatus(resource, manifest):
            try:
                client.replace_status(resource, manifest)
            except NotFound:
                return


def describe(action: Action) -> str:
    """Describe an action for the log: `create JobSet llama`."""
    if isinstance(action, CreateToken):
        return f"create Secret {action.manifest['metadata']['name']}"
    verb = "answer" if isinstance(action, PutStatus) else type(action).__name__.lower()
    name = action.manifest["metadata"]["name"] if isinstance(action, Create | PutStatus) else action.name
    return f"{verb} {action.resource.kind} {name}"
