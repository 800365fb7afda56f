"""The effect of a deletion on an object: removed at once, or kept by finalizers or a grace period. Pure.

The finalizers of a propagation policy are for the garbage collector, an ordinary client.
"""

import copy
from typing import Any

from ptlocal.apiserver.errors import Named, conflict
from ptlocal.apiserver.kinds import custom_resources
from ptlocal.apiserver.kinds.builtin_kinds import Kind
from ptlocal.apiserver.write_options import DeleteOptions
from ptlocal.apiserver.writes import object_meta

Manifest = dict[str, Any]


def outcome(old: Manifest, kind: Kind, options: DeleteOptions) -> tuple[Manifest, bool]:
    """Return the object after a delete request, and True if it is removed."""
    _check_preconditions(kind, old, options)
    obj = copy.deepcopy(old)
    meta = obj["metadata"]
    _set_policy_finalizers(meta, options.propagation or kind.default_policy, options.propagation is not None)
    _hold_definition(kind, meta)
    grace_s = _grace_s(kind, obj, options)
    is_gone = not meta.get("finalizers") and grace_s == 0 and not _namespace_holds(kind, obj)
    if not is_gone or kind.storage_key == "/pods":
        _mark_deleted(meta, kind, obj, grace_s)
    object_meta.tidy(meta)
    return obj, is_gone


def is_finished(obj: Manifest, kind: Kind) -> bool:
    """Return True if deletion was requested and nothing keeps the object any more."""
    meta = obj["metadata"]
    return (
        bool(meta.get("deletionTimestamp"))
        and not meta.get("finalizers")
        and not meta.get("deletionGracePeriodSeconds")
        and not _namespace_holds(kind, obj)
    )


def _namespace_holds(kind: Kind, obj: Manifest) -> bool:
    return kind.storage_key == "/namespaces" and bool((obj.get("spec") or {}).get("finalizers"))


def _check_preconditions(kind: Kind, old: Manifest, options: DeleteOptions) -> None:
    meta = old["metadata"]
    what = Named(kind.group, kind.kind, kind.kind, meta["name"])
    if options.uid and options.uid != meta["uid"]:
        raise conflict(
            what,
            f"the UID in the precondition ({options.uid}) does not match the UID in record "
            f"({meta['uid']}). The object might have been deleted and then recreated",
        )
    if options.resource_version and options.resource_version != meta["resourceVersion"]:
        raise conflict(
            what,
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the "
            f"ResourceVersion in record ({meta['resourceVersion']}). The object might have been "
            "modified",
        )


def _set_policy_finalizers(meta: Manifest, policy: str, explicit: bool) -> None:
    """Set the finalizers that the garbage collector, an ordinary client, acts on."""
    finalizers = list(meta.get("finalizers") or [])
    if not explicit and any(f in finalizers for f in ("foregroundDeletion", "orphan")):
        return  # requested before, and unchanged by this request
    finalizers = [f for f in finalizers if f not in ("foregroundDeletion", "orphan")]
    if policy == "Foreground":
        finalizers.append("foregroundDeletion")
    elif policy == "Orphan":
        finalizers.append("orphan")
    meta["finalizers"] = finalizers


def _hold_definition(kind: Kind, meta: Manifest) -> None:
    """Keep a definition until its objects are gone."""
    if kind.storage_key == custom_resources.STORAGE_KEY and not meta.get("deletionTimestamp"):
        meta["finalizers"] = [*(meta.get("finalizers") or []), custom_resources.CLEANUP_FINALIZER]


def _grace_s(kind: Kind, obj: Manifest, options: DeleteOptions) -> int:
    """Return the grace period: only for pods that a node may be running."""
    if kind.storage_key != "/pods":
        return 0
    if not obj["spec"].get("nodeName") or (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    requested = options.grace_s
    if obj["metadata"].get("deletionTimestamp"):
        remaining = int(obj["metadata"]["deletionGracePeriodSeconds"])
        return remaining if requested is None else min(requested, remaining)
    return max(requested if requested is not None else int(obj["spec"].get("terminationGracePeriodSeconds", 30)), 0)


def _mark_deleted(meta: Manifest, kind: Kind, obj: Manifest, grace_s: int) -> None:
    if not meta.get("deletionTimestamp"):
        meta["deletionTimestamp"] = object_meta.now(grace_s)
        meta["deletionGracePeriodSeconds"] = grace_s
        if "generation" in meta:
            meta["generation"] += 1
    elif grace_s < meta.get("deletionGracePeriodSeconds", 0):
        meta["deletionTimestamp"] = object_meta.now(grace_s)
        meta["deletionGracePeriodSeconds"] = grace_s
    if kind.storage_key == "/namespaces":
        obj.setdefault("status", {})["phase"] = "Terminating"
