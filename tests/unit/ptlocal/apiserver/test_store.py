"""The store and its journal."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ptlocal.apiserver.kinds.builtin_kinds import builtin_kinds
from ptlocal.apiserver.storage import store as store_module
from ptlocal.apiserver.storage.selectors import parse
from ptlocal.apiserver.storage.store import Change, Store
from ptlocal.apiserver.storage.watchers import replay

MAPS = next(kind for kind in builtin_kinds() if kind.storage_key == "/configmaps")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "db")
    yield opened
    opened.close()


def obj(name: str, namespace: str = "n", **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
    }


def changes_since(store: Store, since: int, labels: str = "", namespace: str | None = None) -> list[tuple[str, int]]:
    selector = parse(MAPS, labels, None)
    return [(event.type, event.rv) for event in replay(store, "/configmaps", namespace, selector, since)]


def test_versions_rise_by_one_and_go_on_after_reopening(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    versions = [int(store.write(MAPS, obj(name), "ADDED")["metadata"]["resourceVersion"]) for name in "abc"]
    store.close()
    again = Store(tmp_path / "db")
    versions.append(int(again.write(MAPS, obj("d"), "ADDED")["metadata"]["resourceVersion"]))
    assert versions == list(range(versions[0], versions[0] + 4))
    assert [row.name for row in again.rows("/configmaps")] == ["a", "b", "c", "d"]
    again.close()


def test_kind_and_version_are_not_stored(store: Store) -> None:
    store.write(MAPS, obj("a"), "ADDED")
    stored = store.get("/configmaps", "n", "a")
    assert stored is not None
    assert set(stored) == {"metadata"}


def test_rows_come_in_order_from_behind_a_place(store: Store) -> None:
    for namespace, name in (("n2", "a"), ("n1", "b"), ("n1", "a"), ("n1", "c")):
        store.write(MAPS, obj(name, namespace), "ADDED")
    assert [(r.namespace, r.name) for r in store.rows("/configmaps", None, ("n1", "a"))] == [
        ("n1", "b"), ("n1", "c"), ("n2", "a")]  # fmt: skip
    assert [r.name for r in store.rows("/configmaps", "n1", ("n1", "a"), limit=1)] == ["b"]
    assert store.count("/configmaps", "n1", ("n1", "a")) == 2


def test_every_change_is_told_with_what_was_before(store: Store) -> None:
    changes: list[Change] = []
    store.subscribe(changes.append)
    store.write(MAPS, obj("a", x="1"), "ADDED")
    store.write(MAPS, obj("a", x="2"), "MODIFIED")
    store.write(MAPS, obj("a", x="2"), "DELETED")
    assert [change.type for change in changes] == ["ADDED", "MODIFIED", "DELETED"]
    assert changes[0].before is None
    assert (changes[1].before.labels, changes[1].now.labels) == ({"x": "1"}, {"x": "2"})
    assert store.get("/configmaps", "n", "a") is None


def test_the_journal_replays_through_a_selector(store: Store) -> None:
    start = store.revision
    for labels, change in (
        ({}, "ADDED"),
        ({"on": "1"}, "MODIFIED"),
        ({"on": "1", "x": "2"}, "MODIFIED"),
        ({}, "MODIFIED"),
    ):
        store.write(MAPS, obj("a", **labels), change)  # type: ignore[arg-type]
    store.write(MAPS, obj("b", "other", on="1"), "ADDED")
    assert changes_since(store, start, "on", "n") == [
        ("ADDED", start + 2),
        ("MODIFIED", start + 3),
        ("DELETED", start + 4),
    ]
    assert changes_since(store, start + 3, "on") == [("DELETED", start + 4), ("ADDED", start + 5)]


def test_a_journal_is_only_so_long(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "JOURNAL_LENGTH", 20)
    monkeypatch.setattr(store_module, "_PRUNE_EVERY", 10)
    first = store.revision
    for number in range(60):
        store.write(MAPS, obj(f"m-{number}"), "ADDED")
    assert not store.can_replay_from(first)
    assert store.can_replay_from(store.revision - 20)
    assert len(changes_since(store, store.revision - 20)) == 20
    with pytest.raises(Exception, match="too old resource version"):
        changes_since(store, first)


def test_a_failed_write_changes_nothing(store: Store) -> None:
    before = store.revision
    broken = obj("a")
    broken["data"] = {"x": "\ud800"}
    with pytest.raises(UnicodeEncodeError):
        store.write(MAPS, broken, "ADDED")
    assert store.revision == before
    assert store.get("/configmaps", "n", "a") is None
    store.write(MAPS, obj("a"), "ADDED")
