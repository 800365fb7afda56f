"""Decide what garbage collection does to one object, given the state of its owners and dependents. Pure.

Follows Kubernetes: an object whose owners are all gone is deleted; one that has another owner loses the dead
references; an owner deleted in the foreground waits for the dependents that block it; with Orphan, dependents lose
the reference.
"""

from dataclasses import dataclass
from typing import Literal

from ptkube.resources import Manifest

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"

OwnerState = Literal["solid", "gone", "leaving"]  # leaving: being deleted in the foreground


@dataclass(frozen=True)
class Verdict:
    """The result. At most one field is set, except `drop_owners` (uids), which may be set with any other."""

    delete: Literal["Background", "Foreground", "Orphan"] | None = None
    drop_owners: frozenset[str] = frozenset()
    drop_finalizer: str | None = None
    delete_dependents: bool = False
    orphan_dependents: bool = False


def judge(item: Manifest, owners: dict[str, OwnerState], dependents: list[Manifest]) -> Verdict:
    """Return the verdict. `owners` maps the uid of each owner reference to its state."""
    meta = item["metadata"]
    finalizers = meta.get("finalizers") or []
    if meta.get("deletionTimestamp"):
        if ORPHAN in finalizers:
            return Verdict(drop_finalizer=ORPHAN, orphan_dependents=True)
        if FOREGROUND in finalizers:
            blocked = any(_blocks(dependent, meta["uid"]) for dependent in dependents)
            return Verdict(delete_dependents=True) if blocked else Verdict(drop_finalizer=FOREGROUND)
        return Verdict()
    if not owners:
        return Verdict()
    dead = frozenset(uid for uid, state in owners.items() if state != "solid")
    if not dead:
        return Verdict()
    if any(state == "solid" for state in owners.values()):
        return Verdict(drop_owners=dead)
    if any(state == "leaving" for state in owners.values()) and dependents:
        return Verdict(delete="Foreground")
    return Verdict(delete="Background")


def owner_uids(item: Manifest) -> list[str]:
    """Return the uids of the object's owners."""
    return [str(owner["uid"]) for owner in item["metadata"].get("ownerReferences") or []]


def without_owners(item: Manifest, uids: frozenset[str]) -> list[Manifest]:
    """Return the object's owner references except these."""
    return [owner for owner in item["metadata"].get("ownerReferences") or [] if owner["uid"] not in uids]


def _blocks(dependent: Manifest, uid: str) -> bool:
    references = dependent["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in references)
