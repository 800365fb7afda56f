"""Patches as pure functions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptlocal.apiserver.errors import StatusError
from ptlocal.apiserver.kinds.builtin_schemas import schema_of
from ptlocal.apiserver.writes.patch_formats import json_patch, merge, strategic

JSON: Any = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


@given(target=OBJECTS, patch=OBJECTS)
def test_a_merge_patch_applied_twice_is_applied_once(target: Any, patch: Any) -> None:
    once = merge(target, patch)
    assert merge(once, patch) == once


@given(patch=OBJECTS)
def test_a_merge_patch_on_nothing_is_the_patch_without_its_nulls(patch: Any) -> None:
    assert merge({}, patch) == without_nulls(patch)


@pytest.mark.parametrize(("target", "patch", "expected"), [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}), ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}), ({"a": "b"}, {"a": None}, {}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}), ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}), ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
])  # fmt: skip
def test_the_examples_of_rfc_7386(target: Any, patch: Any, expected: Any) -> None:
    assert merge(target, patch) == expected


@pytest.mark.parametrize(("target", "operation", "expected"), [
    ({"a": [1, 3]}, {"op": "add", "path": "/a/1", "value": 2}, {"a": [1, 2, 3]}),
    ({"a": [1]}, {"op": "add", "path": "/a/-", "value": 2}, {"a": [1, 2]}),
    ({"a": {}}, {"op": "add", "path": "/a/b~1c~0d", "value": 2}, {"a": {"b/c~d": 2}}),
    ({"a": 1, "b": 2}, {"op": "remove", "path": "/a"}, {"b": 2}),
    ({"a": [1, 2]}, {"op": "remove", "path": "/a/0"}, {"a": [2]}),
    ({"a": 1}, {"op": "replace", "path": "/a", "value": 2}, {"a": 2}),
    ({"a": {"x": 1}}, {"op": "move", "from": "/a/x", "path": "/b"}, {"a": {}, "b": 1}),
    ({"a": {"x": 1}}, {"op": "copy", "from": "/a", "path": "/b"}, {"a": {"x": 1}, "b": {"x": 1}}),
    ({"a": None}, {"op": "test", "path": "/a", "value": None}, {"a": None}),
])  # fmt: skip
def test_json_patch_operations(target: Any, operation: Any, expected: Any) -> None:
    before = repr(target)
    assert json_patch(target, [operation]) == expected
    assert repr(target) == before, "the object itself is left alone"


@pytest.mark.parametrize("operation", [
    {"op": "test", "path": "/a", "value": 2}, {"op": "test", "path": "/a", "value": True},
    {"op": "remove", "path": "/z"}, {"op": "replace", "path": "/z", "value": 1},
    {"op": "add", "path": "/l/9", "value": 1},
    {"op": "add", "path": "/a/b", "value": 1}, {"op": "remove", "path": "/l/x"}, {"op": "move", "path": "/b"},
    {"op": "remove", "path": ""}, {"op": "add", "path": "a", "value": 1},
])  # fmt: skip
def test_a_json_patch_that_does_not_apply_is_unprocessable(operation: Any) -> None:
    with pytest.raises(StatusError) as error:
        json_patch({"a": 1, "l": [1]}, [operation])
    assert error.value.code == 422


POD_SPEC = schema_of("PodSpec")


def names(spec: Any) -> list[str]:
    return [container["name"] for container in spec["containers"]]


def test_new_items_come_first_and_the_others_keep_their_place() -> None:
    live = {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}
    patched = strategic(live, {"containers": [{"name": "c", "image": "2"}, {"name": "b", "image": "2"}]}, POD_SPEC)
    assert names(patched) == ["c", "a", "b"]
    assert patched["containers"][2] == {"name": "b", "image": "2"}


def test_the_order_kubectl_asks_for_is_kept() -> None:
    live = {"containers": [{"name": "a"}, {"name": "b"}]}
    patch = {
        "$setElementOrder/containers": [{"name": "b"}, {"name": "c"}, {"name": "a"}],
        "containers": [{"name": "c"}],
    }
    assert names(strategic(live, patch, POD_SPEC)) == ["b", "c", "a"]


def test_directives_delete_and_replace() -> None:
    live = {"containers": [{"name": "a"}, {"name": "b"}], "nodeSelector": {"x": "1", "y": "2"}}
    assert names(strategic(live, {"containers": [{"name": "a", "$patch": "delete"}]}, POD_SPEC)) == ["b"]
    assert names(strategic(live, {"containers": [{"$patch": "replace"}, {"name": "z"}]}, POD_SPEC)) == ["z"]
    patched = strategic(live, {"nodeSelector": {"$patch": "replace", "z": "3"}}, POD_SPEC)
    assert patched["nodeSelector"] == {"z": "3"}


def test_finalizers_are_added_and_taken_away_one_by_one() -> None:
    live = {"finalizers": ["a", "b"]}
    meta = schema_of("ObjectMeta")
    assert strategic(live, {"finalizers": ["b", "c"]}, meta)["finalizers"] == ["a", "b", "c"]
    assert strategic(live, {"$deleteFromPrimitiveList/finalizers": ["a"]}, meta)["finalizers"] == ["b"]


def test_lists_without_a_merge_key_are_replaced() -> None:
    live = {"containers": [{"name": "a", "args": ["1", "2"]}]}
    patched = strategic(live, {"containers": [{"name": "a", "args": ["3"]}]}, POD_SPEC)
    assert patched["containers"][0]["args"] == ["3"]


def test_an_item_without_its_merge_key_is_refused() -> None:
    with pytest.raises(StatusError, match="does not contain declared merge key: name"):
        strategic({}, {"containers": [{"image": "x"}]}, POD_SPEC)
