"""Lists: selectors, pages, versions. Watches: replay, selectors, bookmarks, ends, versions that are too old."""

import json
import threading
import time
from urllib.parse import quote

import pytest
from tests.builders.cluster.api_access import Cluster
from tests.builders.cluster.manifests import MERGE, configmap, widget

from ptkube.resources import EVENTS
from ptoperator.observe.watch_caches import Copies, refusal_informers


@pytest.fixture
def maps(api: Cluster, namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def names(api: Cluster, path: str, **query: str) -> list[str]:
    listing = api.http("GET", path + "?" + "&".join(f"{k}={quote(v)}" for k, v in query.items())).expect(200)
    return [item["metadata"]["name"] for item in listing["items"]]


def test_a_list_names_its_kind_and_its_version(api: Cluster, maps: str, widgets: str) -> None:
    api.http("POST", maps, configmap("a")).expect(201)
    listing = api.http("GET", maps).expect(200)
    assert (listing["apiVersion"], listing["kind"]) == ("v1", "ConfigMapList")
    assert int(listing["metadata"]["resourceVersion"]) >= int(listing["items"][0]["metadata"]["resourceVersion"])
    assert "kind" not in listing["items"][0], "items of built-in kinds do not repeat the kind"
    api.http("POST", widgets, widget("a")).expect(201)
    listing = api.http("GET", widgets).expect(200)
    assert listing["kind"] == "WidgetList"
    assert listing["items"][0]["kind"] == "Widget"


@pytest.mark.parametrize(("selector", "expected"), [
    ("app=x", ["a", "b"]), ("app==x,tier=1", ["a"]), ("app!=x", ["c", "d"]),
    ("tier", ["a", "b"]), ("!tier", ["c", "d"]),
    ("app in (x, y)", ["a", "b", "c"]), ("app notin (x)", ["c", "d"]), ("app in (x),tier notin (1)", ["b"]),
    ("tier>1", ["b"]), ("none=x", []),
])  # fmt: skip
def test_label_selectors(api: Cluster, maps: str, selector: str, expected: list[str]) -> None:
    for name, labels in (("a", {"app": "x", "tier": "1"}), ("b", {"app": "x", "tier": "2"}), ("c", {"app": "y"}),
                         ("d", {})):  # fmt: skip
        api.http("POST", maps, configmap(name, labels=labels)).expect(201)
    # controllers of a real cluster put ConfigMaps of their own into every namespace
    matching = [name for name in names(api, maps, labelSelector=selector) if name in "abcd"]
    assert matching == expected


def test_field_selectors(api: Cluster, maps: str, widgets: str) -> None:
    for name in ("a", "b"):
        api.http("POST", maps, configmap(name)).expect(201)
    assert names(api, maps, fieldSelector="metadata.name=a") == ["a"]
    assert "a" not in names(api, maps, fieldSelector="metadata.name!=a")
    api.http("POST", widgets, widget("red")).expect(201)
    api.http("POST", widgets, widget("blue", {"color": "blue"})).expect(201)
    assert names(api, widgets, fieldSelector="spec.color=blue") == ["blue"], "selectableFields of the definition"


def test_a_selector_that_cannot_be_understood_is_refused(api: Cluster, maps: str, widgets: str) -> None:
    for query in ("labelSelector=" + quote("a==="), "labelSelector=" + quote("in in in"), "fieldSelector=spec.foo%3D1"):
        assert api.http("GET", f"{maps}?{query}").expect(400)["reason"] == "BadRequest"
    assert "field label not supported: spec.size" in api.http("GET", f"{widgets}?fieldSelector=spec.size%3D1").text


def test_a_long_list_comes_in_pages(api: Cluster, maps: str) -> None:
    for number in range(7):
        api.http("POST", maps, configmap(f"page-{number}")).expect(201)
    listed, token, versions = [], "", set()
    while True:
        page = api.http("GET", f"{maps}?limit=3&continue={quote(token)}").expect(200)
        assert len(page["items"]) <= 3
        listed += [item["metadata"]["name"] for item in page["items"]]
        versions.add(page["metadata"]["resourceVersion"])
        token = page["metadata"].get("continue") or ""
        if not token:
            break
        assert page["metadata"]["remainingItemCount"] > 0
    assert [name for name in listed if name.startswith("page-")] == [f"page-{number}" for number in range(7)]
    assert len(versions) == 1
    assert api.http("GET", f"{maps}?limit=3&continue=nonsense").expect(400)["reason"] == "BadRequest"


def test_a_list_spans_namespaces(api: Cluster, namespace: str, maps: str) -> None:
    api.http("POST", maps, configmap("everywhere")).expect(201)
    items = api.http("GET", "/api/v1/configmaps?fieldSelector=metadata.name%3Deverywhere").expect(200)["items"]
    assert namespace in [item["metadata"]["namespace"] for item in items]


def test_a_version_from_the_future_is_not_listed(api: Cluster, maps: str) -> None:
    status = api.http("GET", f"{maps}?resourceVersion=999999999").expect(504)
    assert "Too large resource version" in status["message"]


def test_a_watch_without_a_version_begins_with_what_is_there(api: Cluster, maps: str) -> None:
    api.http("POST", maps, configmap("a")).expect(201)
    with api.watch(f"{maps}?watch=1&fieldSelector=metadata.name%3Da") as watch:
        assert watch.first(1) == [("ADDED", "a")]


def test_a_watch_goes_on_from_a_list(api: Cluster, maps: str) -> None:
    api.http("POST", maps, configmap("before")).expect(201)
    version = api.http("GET", maps).expect(200)["metadata"]["resourceVersion"]
    api.http("POST", maps, configmap("a")).expect(201)
    with api.watch(f"{maps}?watch=1&resourceVersion={version}") as watch:
        api.http("PATCH", f"{maps}/a", {"data": {"x": "1"}}, content_type=MERGE).expect(200)
        api.http("DELETE", f"{maps}/a").expect(200)
        events = watch.wait_for(lambda events: any(kind == "DELETED" for kind, _ in events))
    events = [(kind, item) for kind, item in events if item["metadata"]["name"] == "a"]
    assert [(kind, item["metadata"]["name"]) for kind, item in events] == [
        ("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]  # fmt: skip
    versions = [int(item["metadata"]["resourceVersion"]) for _, item in events]
    assert versions == sorted(set(versions)), "also the deletion has a version of its own"
    assert events[-1][1]["data"] == {"x": "1"}
    assert events[0][1]["kind"] == "ConfigMap"


def test_a_watch_with_a_selector_sees_objects_come_and_go(api: Cluster, maps: str) -> None:
    version = api.http("GET", maps).expect(200)["metadata"]["resourceVersion"]
    with api.watch(f"{maps}?watch=1&resourceVersion={version}&labelSelector=on%3Dyes") as watch:
        api.http("POST", maps, configmap("a", {"x": "0"})).expect(201)
        for labels in ({"on": "yes"}, {"on": "yes", "more": "1"}, {"on": "no", "more": None}, {"on": "yes"}):
            api.http("PATCH", f"{maps}/a", {"metadata": {"labels": labels}}, content_type=MERGE).expect(200)
        api.http("DELETE", f"{maps}/a").expect(200)
        events = watch.wait_for(lambda events: len(events) >= 5)
    assert [kind for kind, _ in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    assert events[2][1]["metadata"]["labels"] == {"on": "yes", "more": "1"}, "as it was when it last matched"


def test_replayed_events_obey_the_selector_too(api: Cluster, maps: str) -> None:
    version = api.http("GET", maps).expect(200)["metadata"]["resourceVersion"]
    api.http("POST", maps, configmap("a")).expect(201)
    for labels in ({"on": "yes"}, {"on": None}):
        api.http("PATCH", f"{maps}/a", {"metadata": {"labels": labels}}, content_type=MERGE).expect(200)
    with api.watch(f"{maps}?watch=1&resourceVersion={version}&labelSelector=on") as watch:
        assert watch.first(2) == [("ADDED", "a"), ("DELETED", "a")]


def test_a_watch_of_one_object_sees_no_other(api: Cluster, widgets: str) -> None:
    version = api.http("GET", widgets).expect(200)["metadata"]["resourceVersion"]
    with api.watch(f"{widgets}?watch=1&resourceVersion={version}&fieldSelector=metadata.name%3Db") as watch:
        for name in "abc":
            api.http("POST", widgets, widget(name)).expect(201)
        api.http("DELETE", f"{widgets}/b").expect(200)
        assert watch.first(2) == [("ADDED", "b"), ("DELETED", "b")]


def test_a_watch_ends_after_its_timeout_with_a_bookmark(api: Cluster, widgets: str) -> None:
    version = api.http("GET", widgets).expect(200)["metadata"]["resourceVersion"]
    with api.watch(f"{widgets}?watch=1&resourceVersion={version}&timeoutSeconds=2&allowWatchBookmarks=true") as watch:
        events = watch.until_over()
    assert {kind for kind, _ in events} <= {"BOOKMARK"}
    for _, item in events:
        assert item["kind"] == "Widget"
        assert int(item["metadata"]["resourceVersion"]) >= int(version)


def test_initial_events_end_with_a_marked_bookmark(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a")).expect(201)
    query = "watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=5"
    with api.watch(f"{widgets}?{query}") as watch:
        events = watch.wait_for(lambda events: any(kind == "BOOKMARK" for kind, _ in events))
    kind, item = next(event for event in events if event[0] == "BOOKMARK")
    assert item["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert [(k, i["metadata"]["name"]) for k, i in events[: events.index((kind, item))]] == [("ADDED", "a")]


def test_a_change_of_another_kind_is_not_seen(api: Cluster, namespace: str, widgets: str) -> None:
    version = api.http("GET", widgets).expect(200)["metadata"]["resourceVersion"]
    with api.watch(f"{widgets}?watch=1&resourceVersion={version}&timeoutSeconds=2") as watch:
        api.http("POST", f"/api/v1/namespaces/{namespace}/configmaps", configmap("a")).expect(201)
        assert [kind for kind, _ in watch.until_over() if kind != "BOOKMARK"] == []


def test_a_version_that_is_not_a_number_is_refused(api: Cluster, maps: str) -> None:
    for version in ("abc", "-1"):
        assert api.http("GET", f"{maps}?resourceVersion={version}").expect(400)["reason"] == "BadRequest"
        assert api.http("GET", f"{maps}?watch=1&resourceVersion={version}").status >= 400


def test_a_watch_as_tables_sends_columns_once(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a")).expect(201)
    api.http("POST", widgets, widget("b")).expect(201)
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    lines = api.http("GET", f"{widgets}?watch=1&timeoutSeconds=1", accept=accept).text.splitlines()
    tables = [json.loads(line)["object"] for line in lines if json.loads(line)["type"] == "ADDED"]
    assert [table["rows"][0]["cells"][0] for table in tables] == ["a", "b"]
    assert [column["name"] for column in tables[0]["columnDefinitions"]] == ["Name", "Color", "Size", "Age"]
    assert not tables[1].get("columnDefinitions")


def test_the_operator_hears_of_refused_creations_and_of_nothing_else(api: Cluster, namespace: str) -> None:
    stop = threading.Event()
    refusals = refusal_informers(api.kube, [namespace], stop)
    copies = Copies({}, refusals)
    assert copies.may_be_refused(namespace, ["a"]), "nothing is known before the lists are there"
    for each in refusals:
        each.start()
    try:
        assert all(each.synced.wait(120) for each in refusals)
        assert not copies.may_be_refused(namespace, ["a", "b"])
        for reason, name in (("FailedCreate", "a"), ("Started", "b")):
            about = {"kind": "Job", "name": name, "namespace": namespace}
            meta = {"generateName": "e-", "namespace": namespace}
            api.kube.create(EVENTS, {"metadata": meta, "involvedObject": about, "reason": reason})
        ends = time.monotonic() + 120
        while not copies.may_be_refused(namespace, ["a"]) and time.monotonic() < ends:
            time.sleep(0.02)
        assert copies.may_be_refused(namespace, ["a"])
        assert not copies.may_be_refused(namespace, ["b"])
    finally:
        stop.set()
