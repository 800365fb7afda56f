"""Server-side apply: ownership, conflicts, force, merging along the schema."""

from typing import Any

import pytest
from tests.builders.cluster.api_access import Answer, Cluster
from tests.builders.cluster.manifests import APPLY, MERGE, widget


@pytest.fixture
def apply(api: Cluster, widgets: str) -> Any:
    def run(manager: str, spec: dict[str, Any], *, force: bool = False, name: str = "a", **metadata: Any) -> Answer:
        query = f"?fieldManager={manager}&force={str(force).lower()}"
        return api.http("PATCH", f"{widgets}/{name}{query}", widget(name, spec, **metadata), content_type=APPLY)

    return run


def owners(obj: dict[str, Any]) -> dict[tuple[str, str], Any]:
    return {(entry["manager"], entry["operation"]): entry["fieldsV1"] for entry in obj["metadata"]["managedFields"]}


def test_apply_creates_and_says_who_owns_what(apply: Any) -> None:
    created = apply("one", {"size": 4, "parts": [{"id": "x"}]}, labels={"l": "1"}).expect(201)
    assert created["spec"] == {"color": "red", "size": 4, "parts": [{"id": "x", "count": 1}]}
    assert owners(created) == {("one", "Apply"): {
        "f:metadata": {"f:labels": {"f:l": {}}},
        "f:spec": {"f:size": {}, "f:parts": {'k:{"id":"x"}': {".": {}, "f:id": {}}}},
    }}  # fmt: skip


def test_the_same_configuration_again_changes_nothing(apply: Any) -> None:
    first = apply("one", {"size": 4}).expect(201)
    assert apply("one", {"size": 4}).expect(200) == first


def test_another_managers_field_is_a_conflict_unless_forced(apply: Any, api: Cluster, widgets: str) -> None:
    apply("one", {"size": 4}).expect(201)
    status = apply("two", {"size": 5}).expect(409)
    assert status["reason"] == "Conflict"
    assert status["message"] == 'Apply failed with 1 conflict: conflict with "one": .spec.size'
    assert status["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".spec.size"}]  # fmt: skip
    assert api.http("GET", f"{widgets}/a").expect(200)["spec"]["size"] == 4
    forced = apply("two", {"size": 5}, force=True).expect(200)
    assert forced["spec"]["size"] == 5
    assert owners(forced) == {("two", "Apply"): {"f:spec": {"f:size": {}}}}


def test_an_equal_value_is_shared_without_conflict(apply: Any) -> None:
    apply("one", {"size": 4}).expect(201)
    shared = apply("two", {"size": 4}).expect(200)
    assert set(owners(shared)) == {("one", "Apply"), ("two", "Apply")}
    assert apply("one", {}).expect(200)["spec"]["size"] == 4, "the other one still wants it"


def test_a_field_no_longer_stated_is_removed(apply: Any) -> None:
    apply("one", {"size": 4, "name": "abc", "map": {"k": 1, "l": 2}}, labels={"a": "1"}).expect(201)
    left = apply("one", {"size": 4, "map": {"k": 1}}).expect(200)
    assert left["spec"] == {"color": "red", "size": 4, "map": {"k": 1}}
    assert "labels" not in left["metadata"]


def test_a_default_comes_back_when_its_field_is_no_longer_stated(apply: Any) -> None:
    apply("one", {"size": 4}).expect(201)
    assert apply("one", {}).expect(200)["spec"] == {"color": "red", "size": 3}


def test_keyed_lists_are_merged_by_item_and_field(apply: Any) -> None:
    apply("one", {"parts": [{"id": "a", "count": 2}, {"id": "b"}]}).expect(201)
    both = apply("two", {"parts": [{"id": "c"}, {"id": "a", "note": "n"}]}).expect(200)
    assert both["spec"]["parts"] == [
        {"id": "c", "count": 1}, {"id": "a", "count": 2, "note": "n"}, {"id": "b", "count": 1}]  # fmt: skip
    left = apply("one", {"parts": [{"id": "b"}]}).expect(200)
    assert left["spec"]["parts"] == [
        {"id": "c", "count": 1}, {"id": "a", "count": 1, "note": "n"}, {"id": "b", "count": 1}]  # fmt: skip


def test_sets_are_merged_and_plain_lists_replaced(apply: Any) -> None:
    apply("one", {"tags": ["x"], "list": ["1"]}).expect(201)
    assert apply("two", {"tags": ["y"]}).expect(200)["spec"]["tags"] == ["x", "y"]
    assert apply("two", {"list": ["2"]}).expect(409)["reason"] == "Conflict"
    assert apply("two", {"list": ["2"]}, force=True).expect(200)["spec"]["list"] == ["2"]


def test_an_ordinary_write_takes_what_it_changes(apply: Any, api: Cluster, widgets: str) -> None:
    apply("one", {"size": 4, "color": "blue"}).expect(201)
    patch = {"spec": {"size": 5}}
    patched = api.http("PATCH", f"{widgets}/a?fieldManager=hand", patch, content_type=MERGE).expect(200)
    assert owners(patched) == {("one", "Apply"): {"f:spec": {"f:color": {}}},
                               ("hand", "Update"): {"f:spec": {"f:size": {}}}}  # fmt: skip
    message = apply("one", {"size": 4, "color": "blue"}).expect(409)["message"]
    assert message == "Apply failed with 1 conflict: " \
        'conflict with "hand" using conformance.posttrain.dev/v1: .spec.size'  # fmt: skip


def test_several_conflicts_are_listed(apply: Any) -> None:
    apply("one", {"size": 4, "color": "blue"}).expect(201)
    message = apply("two", {"size": 5, "color": "red"}).expect(409)["message"]
    assert message.splitlines() == ['Apply failed with 2 conflicts: conflicts with "one":', "- .spec.color",
                                    "- .spec.size"]  # fmt: skip


def test_apply_to_status_owns_status_alone(apply: Any, api: Cluster, widgets: str) -> None:
    apply("one", {"size": 4}).expect(201)
    for kind in ("A", "B"):
        body = {**widget("a", {"size": 9}), "status": {"conditions": [{"type": kind, "status": "True"}]}}
        path = f"{widgets}/a/status?fieldManager=writer-{kind}"
        applied = api.http("PATCH", path, body, content_type=APPLY).expect(200)
    assert [c["type"] for c in applied["status"]["conditions"]] == ["A", "B"]
    assert applied["spec"]["size"] == 4
    assert applied["metadata"]["generation"] == 1
    assert set(owners(applied)[("writer-B", "Apply")]) == {"f:status"}


def test_apply_with_an_old_version_is_a_conflict(apply: Any) -> None:
    old = apply("one", {"size": 4}).expect(201)["metadata"]["resourceVersion"]
    apply("one", {"size": 5}, resourceVersion=old).expect(200)
    assert apply("one", {"size": 6}, resourceVersion=old).expect(409)["reason"] == "Conflict"


def test_apply_needs_a_manager_a_kind_and_known_fields(api: Cluster, widgets: str, apply: Any) -> None:
    status = api.http("PATCH", f"{widgets}/a", widget("a"), content_type=APPLY).expect(422)
    assert "fieldManager: Required value: is required for apply patch" in status["message"]
    api.http("PATCH", f"{widgets}/a?fieldManager=m", {"metadata": {"name": "a"}}, content_type=APPLY).expect(400)
    answer = apply("one", {"foo": 1})
    assert answer.status >= 400
    assert ".spec.foo: field not declared in schema" in answer.json["message"]


def test_an_applied_object_is_validated(apply: Any) -> None:
    assert apply("one", {"color": "green"}).expect(422)["reason"] == "Invalid"


def test_apply_takes_yaml(api: Cluster, widgets: str) -> None:
    body = "apiVersion: conformance.posttrain.dev/v1\nkind: Widget\nmetadata: {name: yam}\nspec:\n  size: 4 # four\n"
    created = api.http("PATCH", f"{widgets}/yam?fieldManager=m", body, content_type=APPLY).expect(201)
    assert created["spec"]["size"] == 4


def test_a_dry_run_of_apply_stores_nothing(api: Cluster, widgets: str) -> None:
    path = f"{widgets}/a?fieldManager=m&dryRun=All"
    assert api.http("PATCH", path, widget("a"), content_type=APPLY).expect(201)["spec"]["size"] == 3
    api.http("GET", f"{widgets}/a").expect(404)
