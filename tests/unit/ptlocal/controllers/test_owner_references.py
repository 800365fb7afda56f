"""What garbage collection does to one object."""

import pytest

from ptkube.resources import Manifest
from ptlocal.controllers.owner_references import OwnerState, Verdict, judge


def thing(
    *owners: str, uid: str = "me", finalizers: list[str] | None = None, leaving: bool = False, blocks: bool = True
) -> Manifest:
    meta: Manifest = {
        "uid": uid,
        "finalizers": finalizers or [],
        "ownerReferences": [{"uid": owner, "blockOwnerDeletion": blocks} for owner in owners],
    }
    if leaving:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": meta}


@pytest.mark.parametrize(
    ("item", "owners", "dependents", "expected"),
    [
        (thing(), {}, [], Verdict()),
        (thing("a"), {"a": "solid"}, [], Verdict()),
        (thing("a"), {"a": "gone"}, [], Verdict(delete="Background")),
        (thing("a", "b"), {"a": "gone", "b": "solid"}, [], Verdict(drop_owners=frozenset({"a"}))),
        (thing("a", "b"), {"a": "gone", "b": "gone"}, [], Verdict(delete="Background")),
        (thing("a"), {"a": "leaving"}, [], Verdict(delete="Background")),
        (thing("a"), {"a": "leaving"}, [thing("me", uid="x")], Verdict(delete="Foreground")),
        (thing(leaving=True), {}, [], Verdict()),
        (thing(leaving=True, finalizers=["foregroundDeletion"]), {}, [thing("me", uid="x")],
         Verdict(delete_dependents=True)),
        (thing(leaving=True, finalizers=["foregroundDeletion"]), {}, [thing("me", uid="x", blocks=False)],
         Verdict(drop_finalizer="foregroundDeletion")),
        (thing(leaving=True, finalizers=["foregroundDeletion"]), {}, [], Verdict(drop_finalizer="foregroundDeletion")),
        (thing(leaving=True, finalizers=["orphan"]), {}, [thing("me", uid="x")],
         Verdict(drop_finalizer="orphan", orphan_dependents=True)),
    ],
)  # fmt: skip
def test_verdict(item: Manifest, owners: dict[str, OwnerState], dependents: list[Manifest], expected: Verdict) -> None:
    assert judge(item, owners, dependents) == expected
