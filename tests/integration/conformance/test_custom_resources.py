"""Custom resources: definitions, schemas, defaults, unknown fields, CEL rules, the status subresource."""

from typing import Any

import pytest
from tests.builders.cluster.api_access import Cluster
from tests.builders.cluster.manifests import MERGE, eventually, is_established, widget

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def test_a_definition_is_established_and_its_kind_discovered(api: Cluster, widgets: str, widget_crd: Any) -> None:
    assert is_established(api.http("GET", f"{DEFINITIONS}/{widget_crd['metadata']['name']}").expect(200))
    served = api.http("GET", "/apis/conformance.posttrain.dev/v1").expect(200)["resources"]
    by_name = {resource["name"]: resource for resource in served}
    assert set(by_name) == {"widgets", "widgets/status"}
    assert by_name["widgets"]["shortNames"] == ["wdg"]
    assert by_name["widgets"]["categories"] == ["all"]
    assert {"create", "delete", "get", "list", "patch", "update", "watch"} <= set(by_name["widgets"]["verbs"])


def test_defaults_are_filled_in_and_stored(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a", {"parts": [{"id": "x"}]})).expect(201)
    spec = api.http("GET", f"{widgets}/a").expect(200)["spec"]
    assert spec == {"color": "red", "size": 3, "parts": [{"id": "x", "count": 1}]}


def test_unknown_fields_are_refused_when_validation_is_strict(api: Cluster, widgets: str) -> None:
    body = widget("a", {"foo": 1, "parts": [{"id": "x", "bar": 2}], "free": {"anything": {"goes": 1}}})
    status = api.http("POST", f"{widgets}?fieldValidation=Strict", body).expect(400)
    assert status["reason"] == "BadRequest"
    assert "strict decoding error" in status["message"]
    assert 'unknown field "spec.foo"' in status["message"]
    assert 'unknown field "spec.parts[0].bar"' in status["message"]
    assert "anything" not in status["message"]


def test_unknown_fields_are_dropped_with_a_warning_otherwise(api: Cluster, widgets: str) -> None:
    answer = api.http("POST", widgets, widget("a", {"foo": 1, "free": {"anything": 1}}))
    assert answer.expect(201)["spec"] == {"color": "red", "size": 3, "free": {"anything": 1}}
    assert 'unknown field "spec.foo"' in answer.headers["Warning"].replace("\\", "")


@pytest.mark.parametrize(("spec", "field", "words"), [
    ({"color": "green"}, "spec.color", 'Unsupported value: "green": supported values: "red", "blue"'),
    ({"size": "x"}, "spec.size", 'in body must be of type integer: "string"'),
    ({"size": 0}, "spec.size", "spec.size in body should be greater than or equal to 1"),
    ({"size": 11, "color": "blue"}, "spec.size", "spec.size in body should be less than or equal to 10"),
    ({"ratio": 0}, "spec.ratio", "spec.ratio in body should be greater than 0"),
    ({"name": "ABC"}, "spec.name", "spec.name in body should match '^[a-z]+$'"),
    ({"name": "abcdef"}, "spec.name", "Too long: may not be more than 5 bytes"),
    ({"name": "a"}, "spec.name", "spec.name in body should be at least 2 chars long"),
    ({"parts": [{"count": 1}]}, "spec.parts[0].id", "Required value"),
    ({"parts": [{"id": "a"}, {"id": "a"}]}, "spec.parts[1]", "Duplicate value"),
    ({"parts": [{"id": c} for c in "abcd"]}, "spec.parts", "Too many: 4: must have at most 3 items"),
    ({"tags": ["a", "a"]}, "spec.tags[1]", 'Duplicate value: "a"'),
    ({"map": {}}, "spec.map", "spec.map in body should have at least 1 properties"),
    ({"map": {"k": "x"}}, "spec.map.k", 'must be of type integer: "string"'),
    ({"port": [1]}, "spec.port", 'must be of type integer,string: "array"'),
    ({"when": "yesterday"}, "spec.when", "must be of type date-time"),
])  # fmt: skip
def test_a_wrong_value_is_refused_and_its_field_named(
    api: Cluster, widgets: str, spec: dict[str, Any], field: str, words: str
) -> None:
    status = api.http("POST", widgets, widget("a", spec)).expect(422)
    assert (status["reason"], status["details"]["kind"]) == ("Invalid", "Widget")
    assert status["message"].startswith('Widget.conformance.posttrain.dev "a" is invalid: ')
    (cause,) = [c for c in status["details"]["causes"] if c["field"] == field]
    assert words in cause["message"]
    api.http("GET", f"{widgets}/a").expect(404)


def test_all_wrong_fields_are_reported_at_once(api: Cluster, widgets: str) -> None:
    status = api.http("POST", widgets, widget("a", {"color": "x", "size": 0, "name": "ABC"})).expect(422)
    assert {"spec.color", "spec.size", "spec.name"} <= {c["field"] for c in status["details"]["causes"]}


def test_a_missing_spec_is_refused(api: Cluster, widgets: str) -> None:
    body = {key: value for key, value in widget("a").items() if key != "spec"}
    status = api.http("POST", widgets, body).expect(422)
    assert "spec: Required value" in status["message"]


def test_exactly_one_of_is_enforced(api: Cluster, widgets: str) -> None:
    for one in ({}, {"a": "", "b": ""}):
        status = api.http("POST", widgets, widget("x", {"one": one})).expect(422)
        assert '"spec.one" must validate one and only one schema (oneOf)' in status["message"]
    api.http("POST", widgets, widget("x", {"one": {"b": ""}})).expect(201)


def test_a_null_means_absent_unless_the_schema_allows_it(api: Cluster, widgets: str) -> None:
    created = api.http("POST", widgets, widget("a", {"color": None, "name": None, "nul": None})).expect(201)
    assert created["spec"] == {"color": "red", "size": 3, "nul": None}


def test_an_int_or_string_takes_both(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a", {"port": 80})).expect(201)
    api.http("POST", widgets, widget("b", {"port": "http"})).expect(201)


def test_a_cel_rule_refuses_with_its_message(api: Cluster, widgets: str) -> None:
    status = api.http("POST", widgets, widget("a", {"size": 9})).expect(422)
    (cause,) = status["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldValueInvalid", "spec")
    assert cause["message"].endswith(": big ones are blue")
    api.http("POST", widgets, widget("a", {"size": 9, "color": "blue"})).expect(201)


def test_a_cel_rule_may_compute_its_message_and_name_a_field(api: Cluster, widgets: str) -> None:
    status = api.http("POST", widgets, widget("a", {"name": "zz"})).expect(422)
    (cause,) = status["details"]["causes"]
    assert cause["field"] == "spec.name"
    assert cause["message"].endswith(": bad name: zz")


def test_a_cel_rule_that_fails_to_run_refuses(api: Cluster, widgets: str) -> None:
    status = api.http("POST", widgets, widget("a", {"map": {"other": 1}})).expect(422)
    assert "no such key: k" in status["message"]


def test_a_transition_rule_compares_with_the_old_object(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a", {"fixed": "x"})).expect(201)
    status = api.http("PATCH", f"{widgets}/a", {"spec": {"fixed": "y"}}, content_type=MERGE).expect(422)
    assert status["details"]["causes"][0]["field"] == "spec.fixed"
    assert status["details"]["causes"][0]["message"].endswith(": is immutable")
    api.http("PATCH", f"{widgets}/a", {"spec": {"fixed": "x", "size": 4}}, content_type=MERGE).expect(200)


def test_a_rule_that_cannot_be_compiled_refuses_the_definition(api: Cluster, widget_crd: Any) -> None:
    group = "broken.posttrain.dev"
    schema = {"type": "object", "properties": {"spec": {
        "type": "object", "properties": {"a": {"type": "string"}},
        "x-kubernetes-validations": [{"rule": "self.a == "}]}}}  # fmt: skip
    crd = {
        "metadata": {"name": f"things.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
                 "versions": [{"name": "v1", "served": True, "storage": True,
                               "schema": {"openAPIV3Schema": schema}}]},
    }  # fmt: skip
    status = api.http("POST", DEFINITIONS, crd).expect(422)
    assert "x-kubernetes-validations[0].rule" in status["message"]
    assert "compilation failed" in status["message"]


def test_status_is_dropped_at_creation_and_by_writes_of_the_object(api: Cluster, widgets: str) -> None:
    created = api.http("POST", widgets, {**widget("a"), "status": {"phase": "made up"}}).expect(201)
    assert "status" not in created
    patched = api.http("PATCH", f"{widgets}/a", {"status": {"phase": "made up"}}, content_type=MERGE).expect(200)
    assert "status" not in patched


def test_a_write_of_status_changes_nothing_else(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a")).expect(201)
    body = {"spec": {"size": 9}, "metadata": {"labels": {"a": "b"}}, "status": {"phase": "Running", "unknown": 1}}
    patched = api.http("PATCH", f"{widgets}/a/status", body, content_type=MERGE).expect(200)
    assert patched["status"] == {"phase": "Running"}
    assert patched["spec"]["size"] == 3
    assert "labels" not in patched["metadata"]
    replaced = {**patched, "spec": {"size": 8}, "status": {"phase": "Done"}}
    assert api.http("PUT", f"{widgets}/a/status", replaced).expect(200)["spec"]["size"] == 3
    assert api.http("GET", f"{widgets}/a/status").expect(200)["status"] == {"phase": "Done"}


def test_status_is_validated_too(api: Cluster, widgets: str) -> None:
    api.http("POST", widgets, widget("a")).expect(201)
    status = api.http("PATCH", f"{widgets}/a/status", {"status": {"phase": 1}}, content_type=MERGE).expect(422)
    assert status["details"]["causes"][0]["field"] == "status.phase"


def test_an_object_that_was_valid_once_may_keep_its_wrong_parts(api: Cluster) -> None:
    """Ratcheting: a definition that became stricter does not lock its objects."""
    group = "ratchet.posttrain.dev"
    name = f"things.{group}"

    def definition(maximum: int) -> dict[str, Any]:
        properties = {"n1": {"type": "integer", "maximum": maximum}, "other": {"type": "string"}}
        schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}
        return {"metadata": {"name": name}, "spec": {
            "group": group, "scope": "Cluster", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        }}  # fmt: skip

    things = f"/apis/{group}/v1/things"
    api.http("POST", DEFINITIONS, definition(10)).expect(201)
    try:
        eventually(lambda: api.http("GET", things).status == 200)
        api.http("POST", things, {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "a"},
                                  "spec": {"n1": 9}}).expect(201)  # fmt: skip
        patch = {"spec": {"versions": definition(5)["spec"]["versions"]}}
        api.http("PATCH", f"{DEFINITIONS}/{name}", patch, content_type=MERGE).expect(200)
        eventually(
            lambda: (
                api.http(
                    "POST",
                    f"{things}?dryRun=All",
                    {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "b"}, "spec": {"n1": 9}},
                ).status
                == 422
            )
        )
        change = {"spec": {"other": "x"}}
        assert api.http("PATCH", f"{things}/a", change, content_type=MERGE).expect(200)["spec"]["n1"] == 9
        api.http("PATCH", f"{things}/a", {"spec": {"n1": 8}}, content_type=MERGE).expect(422)
    finally:
        api.http("DELETE", f"{DEFINITIONS}/{name}").expect(200)


def test_a_field_that_is_newer_than_an_object_has_its_default_in_the_old_value(api: Cluster) -> None:
    """A definition that gains a field with a default, and a rule that it never changes, does not lock its objects."""
    group = "younger.posttrain.dev"
    name = f"things.{group}"

    def definition(*, has_mode: bool) -> dict[str, Any]:
        mode = {"mode": {"type": "string", "default": "a"}} if has_mode else {}
        rules = [{"rule": "self.mode == oldSelf.mode", "message": "never changes"}] if has_mode else []
        spec = {
            "type": "object",
            "properties": {"size": {"type": "integer"}, **mode},
            "x-kubernetes-validations": rules,
        }
        schema = {"type": "object", "properties": {"spec": spec}}
        return {"metadata": {"name": name}, "spec": {
            "group": group, "scope": "Cluster", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        }}  # fmt: skip

    things = f"/apis/{group}/v1/things"
    api.http("POST", DEFINITIONS, definition(has_mode=False)).expect(201)
    try:
        eventually(lambda: api.http("GET", things).status == 200)
        thing = {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"size": 1}}
        api.http("POST", things, thing).expect(201)
        patch = {"spec": {"versions": definition(has_mode=True)["spec"]["versions"]}}
        api.http("PATCH", f"{DEFINITIONS}/{name}", patch, content_type=MERGE).expect(200)
        other = {**thing, "metadata": {"name": "b"}}
        eventually(lambda: "mode" in api.http("POST", f"{things}?dryRun=All", other).expect(201)["spec"])
        assert api.http("GET", f"{things}/a").expect(200)["spec"] == {"size": 1, "mode": "a"}
        label = {"metadata": {"labels": {"a": "b"}}}
        labelled = api.http("PATCH", f"{things}/a", label, content_type=MERGE).expect(200)
        assert labelled["metadata"]["generation"] == 1
        changed = api.http("PATCH", f"{things}/a", {"spec": {"size": 2}}, content_type=MERGE).expect(200)
        assert changed["spec"] == {"size": 2, "mode": "a"}
        api.http("PATCH", f"{things}/a", {"spec": {"mode": "b"}}, content_type=MERGE).expect(422)
    finally:
        api.http("DELETE", f"{DEFINITIONS}/{name}").expect(200)


def test_a_deleted_definition_takes_its_objects_along(api: Cluster, namespace: str) -> None:
    group = "passing.posttrain.dev"
    name = f"things.{group}"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    api.http("POST", DEFINITIONS, {"metadata": {"name": name}, "spec": {
        "group": group, "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
    }}).expect(201)  # fmt: skip
    things = f"/apis/{group}/v1/namespaces/{namespace}/things"
    eventually(lambda: api.http("GET", things).status == 200)
    api.http("POST", things, {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "a"}}).expect(201)
    api.http("DELETE", f"{DEFINITIONS}/{name}").expect(200)
    eventually(lambda: api.http("GET", f"{DEFINITIONS}/{name}").status == 404)
    eventually(lambda: api.http("GET", things).status == 404)
