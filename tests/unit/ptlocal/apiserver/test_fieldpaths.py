"""Field sets: what is owned, what changed, FieldsV1 and back."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ptlocal.apiserver.writes.field_sets import difference, from_fields_v1, shown, stated, to_fields_v1

KEYED: dict[str, Any] = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                         "items": {"type": "object"}}  # fmt: skip
PORTS: dict[str, Any] = {
    "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
    "items": {"type": "object", "properties": {"protocol": {"type": "string", "default": "TCP"}}}}  # fmt: skip
SCHEMA: dict[str, Any] = {"type": "object", "properties": {
    "items": KEYED, "ports": PORTS, "set": {"type": "array", "x-kubernetes-list-type": "set"},
    "list": {"type": "array"}, "whole": {"type": "object", "x-kubernetes-map-type": "atomic"}}}  # fmt: skip


def test_scalars_keyed_items_and_atomic_values_are_owned_as_such() -> None:
    value = {"a": 1, "items": [{"name": "x", "v": 1}], "set": ["p"], "list": [1], "whole": {"k": 1}, "empty": {}}
    assert stated(value, SCHEMA) == {
        ("f:a",), ("f:items", 'k:{"name":"x"}'), ("f:items", 'k:{"name":"x"}', "f:name"),
        ("f:items", 'k:{"name":"x"}', "f:v"), ("f:set", 'v:"p"'), ("f:list",), ("f:whole",), ("f:empty",)}  # fmt: skip


def test_the_key_of_an_item_includes_defaults() -> None:
    (path, *_) = sorted(stated({"ports": [{"port": 80}]}, SCHEMA))
    assert path == ("f:ports", 'k:{"port":80,"protocol":"TCP"}')
    assert shown(path) == '.ports[port=80,protocol="TCP"]'


def test_a_keyed_list_with_doubles_or_without_keys_is_one_leaf() -> None:
    assert stated({"items": [{"name": "x"}, {"name": "x"}]}, SCHEMA) == {("f:items",)}
    assert stated({"items": [{"v": 1}]}, SCHEMA) == {("f:items",)}


def test_a_difference_names_added_modified_and_removed_fields() -> None:
    old = {"a": 1, "b": 2, "items": [{"name": "x", "v": 1}], "list": [1]}
    new = {"a": 1, "b": 3, "items": [{"name": "y"}], "list": [2], "m": {"n": 1}}
    changed = difference(old, new, SCHEMA)
    assert changed.modified == {("f:b",), ("f:list",)}
    assert changed.added == {("f:items", 'k:{"name":"y"}'), ("f:items", 'k:{"name":"y"}', "f:name"), ("f:m",),
                           ("f:m", "f:n")}  # fmt: skip
    assert changed.removed == {("f:items", 'k:{"name":"x"}'), ("f:items", 'k:{"name":"x"}', "f:name"),
                             ("f:items", 'k:{"name":"x"}', "f:v")}  # fmt: skip


def test_the_order_of_keyed_items_is_no_difference() -> None:
    old, new = {"items": [{"name": "x"}, {"name": "y"}]}, {"items": [{"name": "y"}, {"name": "x"}]}
    changed = difference(old, new, SCHEMA)
    assert not (changed.added | changed.modified | changed.removed)


PATHS = st.sets(st.lists(st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"p"']), min_size=1, max_size=4).map(tuple))


@given(paths=PATHS)
def test_fields_v1_and_back_is_the_identity(paths: set[tuple[str, ...]]) -> None:
    assert from_fields_v1(to_fields_v1(paths)) == paths


def test_fields_v1_marks_a_node_that_is_owned_beside_its_parts_with_a_dot() -> None:
    tree = to_fields_v1({("f:a",), ("f:a", "f:b")})
    assert tree == {"f:a": {".": {}, "f:b": {}}}
