"""Walks over schemas: unknown fields, nulls, defaults, validation; and the shipped schemas themselves."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ptapi import quantity
from ptlocal.apiserver import jobset_crd
from ptlocal.apiserver.kinds import builtin_schemas
from ptlocal.apiserver.rules import rules_of
from ptlocal.apiserver.schema import defaulting, pruning, validation

SCHEMA: dict[str, Any] = {"type": "object", "properties": {
    "a": {"type": "integer", "default": 1},
    "o": {"type": "object", "properties": {"d": {"type": "string", "default": "x"}}},
    "l": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "integer", "default": 7}}}},
    "m": {"type": "object", "additionalProperties": {"type": "object", "properties": {"k": {"type": "integer"}}}},
    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {
        "known": {"type": "object", "properties": {"x": {"type": "string"}}}}},
    "embedded": {"type": "object", "x-kubernetes-embedded-resource": True, "properties": {
        "spec": {"type": "object"}}},
    "z": {"type": "string", "nullable": True},
}}  # fmt: skip


def test_unknown_fields_are_named_by_path_and_dropped() -> None:
    obj = {"kind": "K", "metadata": {"name": "n", "bad": 1}, "a": 1, "b": 2, "o": {"p": 1}, "l": [{}, {"q": 1}],
           "m": {"any": {"k": 1, "r": 2}}}  # fmt: skip
    assert pruning.prune_object(obj, SCHEMA) == ["metadata.bad", "b", "o.p", "l[1].q", "m.any.r"]
    assert obj == {"kind": "K", "metadata": {"name": "n"}, "a": 1, "o": {}, "l": [{}, {}], "m": {"any": {"k": 1}}}


def test_patterns_mean_what_they_mean_to_go() -> None:
    pattern = validation.compiled("^(?i)[a-z]([-a-z0-9]*[a-z0-9])?$")
    assert [bool(pattern.search(text)) for text in ("Kind", "kind-2", "2kind", "kind\n")] == [True, True, False, False]


def test_what_may_be_free_is_kept_but_known_parts_of_it_are_still_known() -> None:
    obj = {"free": {"anything": {"at": "all"}, "known": {"x": "1", "y": 2}}}
    assert pruning.prune_object(obj, SCHEMA) == ["free.known.y"]
    assert obj == {"free": {"anything": {"at": "all"}, "known": {"x": "1"}}}


def test_an_embedded_object_has_the_usual_head() -> None:
    obj = {"embedded": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "bad": 1}, "spec": {}, "foo": 1}}
    assert pruning.prune_object(obj, SCHEMA) == ["embedded.metadata.bad", "embedded.foo"]


def test_defaults_fill_what_is_absent_in_what_is_there() -> None:
    obj: dict[str, Any] = {"l": [{}, {"k": 1}], "o": {}}
    defaulting.apply_defaults(obj, SCHEMA)
    assert obj == {"a": 1, "l": [{"k": 7}, {"k": 1}], "o": {"d": "x"}}


def test_defaulting_twice_is_defaulting_once_and_defaults_are_not_shared() -> None:
    schema = {"type": "object", "properties": {"d": {"type": "object", "default": {"x": []}}}}
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    defaulting.apply_defaults(first, schema)
    defaulting.apply_defaults(second, schema)
    first["d"]["x"].append(1)
    assert second == {"d": {"x": []}}


def test_nulls_go_unless_allowed() -> None:
    obj = {"a": None, "z": None, "o": {"d": None}}
    pruning.drop_nulls(obj, SCHEMA)
    assert obj == {"z": None, "o": {}}


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*SCHEMA["properties"], "k", "x"]), inner)
    ),
    max_leaves=10,
)


@given(value=st.dictionaries(st.sampled_from([*SCHEMA["properties"], "unknown"]), JSON))
def test_no_value_breaks_the_walks_and_pruning_leaves_nothing_to_prune(value: Any) -> None:
    value = copy.deepcopy(value)
    pruning.drop_nulls(value, SCHEMA)
    pruning.prune_object(value, SCHEMA)
    assert pruning.prune_object(value, SCHEMA) == []
    defaulting.apply_defaults(value, SCHEMA)
    for error in validation.errors(value, SCHEMA):
        assert error.path
        assert error.message


def test_only_the_changed_part_is_validated_on_update() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 5}, "b": {"type": "integer"}}}
    assert validation.errors({"a": 9, "b": 2}, schema, "", {"a": 9, "b": 1}) == []
    assert [e.path for e in validation.errors({"a": 8, "b": 1}, schema, "", {"a": 9, "b": 1})] == ["a"]


def test_quantities_are_told_from_other_text() -> None:
    for good in ("1", "500m", "1.5", "2Gi", "1e3", "100k", ".5", "-1", 3, 1.5):
        assert quantity.is_quantity(good), good
    for bad in ("", "1 Gi", "Gi", "1GiB", "one", True, None, "1.2.3"):
        assert not quantity.is_quantity(bad), bad
    assert quantity.parse_quantity("2Ki") == 2048
    assert quantity.parse_quantity("500m") * 2 == 1


def test_a_built_in_quantity_is_checked() -> None:
    schema = builtin_schemas.schema_of("ResourceRequirements")
    assert validation.errors({"limits": {"cpu": "1", "memory": "1Gi"}}, schema) == []
    (error,) = validation.errors({"limits": {"memory": "1 GB"}}, schema)
    assert error.path == "limits.memory"


def test_the_jobset_definition_is_one_the_server_would_accept() -> None:
    crd = jobset_crd.definition()
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert pruning.prune_object(copy.deepcopy(crd), builtin_schemas.schema_of("CustomResourceDefinition")) == []
    rules = rules_of("apiextensions.k8s.io/customresourcedefinitions")
    rules.default(crd)
    assert rules.validate(crd) == []
    jobset: dict[str, Any] = {"metadata": {"name": "j"}, "spec": {"replicatedJobs": [{"name": "w", "template": {
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}}]}}  # fmt: skip
    defaulting.apply_defaults(jobset, schema)
    spec = jobset["spec"]
    assert spec["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    assert spec["successPolicy"] == {"operator": "All"}
    assert spec["startupPolicy"] == {"startupPolicyOrder": "AnyOrder"}
    assert spec["replicatedJobs"][0]["replicas"] == 1
    assert spec["replicatedJobs"][0]["template"]["spec"]["completionMode"] == "Indexed"
    assert validation.errors({"spec": spec}, schema) == []


def test_the_shipped_schemas_know_how_lists_merge() -> None:
    pod = builtin_schemas.schema_of("PodSpec")["properties"]
    assert pod["containers"]["x-kubernetes-list-map-keys"] == ["name"]
    assert pod["containers"]["x-kubernetes-patch-merge-key"] == "name"
    ports = pod["containers"]["items"]["properties"]["ports"]
    assert ports["x-kubernetes-list-map-keys"] == ["containerPort", "protocol"]
    assert builtin_schemas.schema_of("PodStatus")["properties"]["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert pod["tolerations"]["x-kubernetes-list-type"] == "atomic"
