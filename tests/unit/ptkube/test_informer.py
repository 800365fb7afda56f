"""The local copy of a kind: list, watch, resume, and writes of our own."""

import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ptkube.client import ListResult
from ptkube.errors import ApiError, Forbidden, Gone, Unreachable
from ptkube.informer import Informer
from ptkube.resources import PODS, Manifest
from ptkube.watch import changes
from ptkube.watch_cache import LocalCopy


def pod(name: str, version: int, uid: str = "u") -> Manifest:
    return {"metadata": {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version)}}


class Scripted:
    """Stands for a Kube: each list and watch answers with the next entry of its script."""

    def __init__(self, lists: list[ListResult], watches: list[Any], stop: threading.Event) -> None:
        self.lists, self.watches, self.stop = lists, watches, stop
        self.versions: list[str | None] = []

    def list(self, *_: Any, **__: Any) -> ListResult:
        return self.lists.pop(0)

    def watch(self, *_: Any, resource_version: str | None = None, **__: Any) -> Iterator[tuple[str, Manifest]]:
        self.versions.append(resource_version)
        if not self.watches:
            self.stop.set()
            return
        script = self.watches.pop(0)
        if isinstance(script, Exception):
            raise script
        yield from script


def follow(lists: list[ListResult], watches: list[Any]) -> tuple[Informer, Scripted, list[tuple[str, str]]]:
    stop = threading.Event()
    kube = Scripted(lists, watches, stop)
    informer = Informer(kube, PODS, stop)  # type: ignore[arg-type]
    heard: list[tuple[str, str]] = []
    informer.listen(lambda kind, item: heard.append((kind, item["metadata"]["name"])))
    informer.run()
    return informer, kube, heard


def names(informer: Informer) -> list[str]:
    return sorted(item["metadata"]["name"] for item in informer.items())


def test_events_change_the_copy_and_reach_the_listener() -> None:
    informer, kube, heard = follow(
        [ListResult([pod("a", 1)], "5")],
        [[("ADDED", pod("b", 6)), ("MODIFIED", pod("a", 7)), ("DELETED", pod("b", 8))]],
    )
    assert names(informer) == ["a"]
    assert heard == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    assert kube.versions == ["5", "8"]


def test_bookmarks_move_the_place_to_resume_from_and_nothing_else() -> None:
    informer, kube, heard = follow([ListResult([], "5")], [[("BOOKMARK", {"metadata": {"resourceVersion": "40"}})]])
    assert (names(informer), heard, kube.versions) == ([], [], ["5", "40"])


def test_after_gone_the_new_list_tells_what_was_missed() -> None:
    informer, kube, heard = follow(
        [
            ListResult([pod("a", 1), pod("b", 2), pod("c", 3)], "5"),
            ListResult([pod("a", 1), pod("b", 9), pod("c", 10, uid="other"), pod("d", 11)], "20"),
        ],
        [Gone(410, "Gone", "too old")],
    )
    assert names(informer) == ["a", "b", "c", "d"]
    assert heard[3:] == [("DELETED", "c"), ("MODIFIED", "b"), ("ADDED", "c"), ("ADDED", "d")]
    assert kube.versions == ["5", "20"]


def test_our_own_write_is_seen_at_once_unless_the_watch_is_past_it() -> None:
    informer, _, _ = follow([ListResult([pod("a", 1)], "5")], [])
    informer.record(pod("new", 6))
    informer.record(pod("a", 7))
    informer.record(pod("a", 6))
    informer.record(pod("ghost", 4))
    assert names(informer) == ["a", "new"]
    copy = informer.get("ns", "a")
    assert copy is not None
    assert copy["metadata"]["resourceVersion"] == "7"


def test_a_late_event_does_not_undo_a_newer_write_of_ours() -> None:
    stop = threading.Event()
    kube = Scripted([ListResult([pod("a", 1)], "5")], [], stop)
    informer = Informer(kube, PODS, stop)  # type: ignore[arg-type]

    def events() -> Iterator[tuple[str, Manifest]]:
        informer.record(pod("a", 9))
        yield "MODIFIED", pod("a", 7)

    kube.watches.append(events())
    informer.run()
    copy = informer.get("ns", "a")
    assert copy is not None
    assert copy["metadata"]["resourceVersion"] == "9"


def test_a_program_that_waits_is_told_what_an_outage_hid_and_gives_up_on_a_refusal() -> None:
    lists = [ListResult([pod("a", 1), pod("b", 2)], "5"), ListResult([pod("a", 1), pod("c", 7)], "9")]
    away = Unreachable(0, "Unreachable", "connection refused")
    kube = Scripted(lists, [away, Forbidden(403, "Forbidden", "cannot watch")], threading.Event())
    events = changes(kube, PODS, "ns")  # type: ignore[arg-type]
    lines = [f"{kind} {item['metadata']['name']}" if item else kind for kind, item in itertools.islice(events, 6)]
    assert lines == ["ADDED a", "ADDED b", "SYNCED", "DELETED b", "ADDED c", "SYNCED"]
    with pytest.raises(Forbidden):
        next(events)
    with pytest.raises(Unreachable):  # before anything was seen nothing is waited for
        list(changes(Unserved(away), PODS, "ns"))  # type: ignore[arg-type]


class Unserved:
    """A cluster that is away from the start."""

    def __init__(self, error: ApiError) -> None:
        self.error = error

    def list(self, *_: Any, **__: Any) -> ListResult:
        raise self.error


def test_an_outage_is_one_warning_however_long(caplog: pytest.LogCaptureFixture) -> None:
    away = Unreachable(0, "Unreachable", "connection refused")
    informer, _, _ = follow([ListResult([pod("a", 1)], "5")] * 4, [away, away, away])
    assert [record.getMessage() for record in caplog.records] == ["watch of pods interrupted: connection refused"]
    assert names(informer) == ["a"]


def test_what_is_kept_of_two_objects_shares_its_words() -> None:
    copy = LocalCopy(PODS)
    for name in ("a", "b"):
        document = json.dumps({"metadata": {"name": name, "resourceVersion": "1"}, "status": {"phase": "Running"}})
        copy.take("ADDED", json.loads(document))
    one, other = (copy.get("", name) or {} for name in ("a", "b"))
    assert one["status"]["phase"] is other["status"]["phase"]
    assert all(key is same for key, same in zip(one, other, strict=True))
