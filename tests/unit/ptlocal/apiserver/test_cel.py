"""CEL as Kubernetes documents it: each case with its value, its error, or why its definition is refused."""

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptlocal.apiserver.rules import rules_of
from ptlocal.apiserver.schema.cel import CelError, RuleWalk, activation, program

SELF = {
    "a": 1, "b": "text", "c": [1, 2, 3], "d": {"x": 1, "y": 2}, "e": None, "f": 1.5, "g": True,
    "items": [{"name": "p", "n1": 1}, {"name": "q"}],
}  # fmt: skip


def run(source: str, **variables: Any) -> Any:
    return program(source).run(activation({"self": SELF, **variables}))


@pytest.mark.parametrize(("source", "expected"), [
    ("1 + 2 * 3", 7), ("(1 + 2) * 3", 9), ("7 / 2", 3), ("-7 / 2", -3), ("-7 % 3", -1), ("7.0 / 2.0", 3.5),
    ("2 - 3 - 4", -5), ("!true || true", True), ("1 < 2 && 2 <= 2", True), ("'a' + 'b' == \"ab\"", True),
    ("1 in [1, 2]", True), ("'x' in self.d", True), ("'z' in self.d", False), ("self.a == 1 ? 'yes' : 'no'", "yes"),
    ("true ? 1 : 1 / 0", 1), ("[1, 2] + [3]", [1, 2, 3]), ("{'k': 1}['k']", 1), ("self.c[1]", 2), ("self['a']", 1),
    ("size(self.c)", 3), ("self.b.size()", 4), ("'äö'.size()", 2), ("has(self.a)", True), ("has(self.z)", False),
    ("self.c.all(x, x > 0)", True), ("self.c.exists(x, x > 2)", True), ("self.c.exists_one(x, x > 2)", True),
    ("self.c.filter(x, x > 1)", [2, 3]), ("self.c.map(x, x * 2)", [2, 4, 6]),
    ("self.c.map(x, x > 1, x * 2)", [4, 6]), ("self.d.all(k, self.d[k] > 0)", True),
    ("self.items.exists(i, has(i.n1) && i.n1 == 1)", True), ("[[1], [2]].all(x, x.all(y, y > 0))", True),
    ("'v5p-16'.matches('^v5p-[0-9]+$')", True), ("'v5p-16\\n'.matches('^v5p-[0-9]+$')", False),
    ("'ABC'.matches('(?i)abc')", True), ("'a$b'.matches('[$]')", True), ("'abc'.startsWith('ab')", True),
    ("'abc'.endsWith('bc')", True), ("'abc'.contains('x')", False), ("'a-b'.split('-')", ["a", "b"]),
    ("'a-b-c'.split('-', 2)", ["a", "b-c"]), ("int('12') + 1", 13), ("int(3.9)", 3), ("string(12)", "12"),
    ("double(1) / 2.0", 0.5), ("'%s has %d (%.1f)'.format(['x', 3, 1.25])", "x has 3 (1.2)"),
    ("'%s'.format([[1, 'a', true]])", "[1, a, true]"), ("'100%%'.format([])", "100%"), ("'%x'.format([255])", "ff"),
    ("'abc'.substring(1)", "bc"), ("'abc'.substring(0, 2)", "ab"), ("'aXb'.lowerAscii()", "axb"),
    ("' a '.trim()", "a"), ("['a', 'b'].join(',')", "a,b"), ("'abcb'.replace('b', 'x')", "axcx"),
    ("'abc'.indexOf('c')", 2), ("[3, 1, 2].max()", 3), ("[1, 2].sum()", 3), ("[1, 2].isSorted()", True),
    ("[3, 1].isSorted()", False), ("[0.5, 0.25].min()", 0.25), ("[].sum()", 0), ("['a', 'b', 'a'].indexOf('b')", 1),
    ("['a', 'b', 'a'].lastIndexOf('a')", 2), ("[1, 2].indexOf(3)", -1), ("self.c.indexOf(2)", 1),
    ("type(1) == int", True), ("type('a') == string", True), ("self.a == 1.0", True), ("self.g == 1", False),
    ("null == self.e", True), ("r'\\d' == '\\\\d'", True), ("'it\\'s'", "it's"), ("0x10", 16), ("1u", 1),
    ("duration('1h30m') > duration('89m')", True), ("timestamp('2026-01-01T00:00:00Z').getFullYear()", 2026),
    ("self.?z.orValue(5)", 5), ("self.?a.orValue(5)", 1), ("self.?z.hasValue()", False),
    ("quantity('1Gi').isGreaterThan(quantity('500Mi'))", True), ("isQuantity('1 Gi')", False),
    ("quantity('1Gi') == quantity('1024Mi')", True), ("quantity('500m').compareTo(quantity('0.5'))", 0),
    ("quantity('1k').isLessThan(quantity('1Ki'))", True), ("isIP('::1')", True), ("isIP('1.2.3')", False),
    ("sets.contains([1, 2], [2])", True), ("sets.intersects([1], [2])", False),
    ("sets.equivalent([1, 2], [2, 1])", True), ("'a1b22'.findAll('[0-9]+')", ["1", "22"]),
    ("'a1b22'.findAll('[0-9]+', 1)", ["1"]), ("'a1b22'.find('[0-9]+$')", "22"), ("isURL('https://a/b')", True),
    ("isURL('a b')", False), ("math.greatest(1, 3)", 3), ("math.least([2, 1])", 1),
    ("// comment\n 1", 1),
])  # fmt: skip
def test_an_expression_has_this_value(source: str, expected: Any) -> None:
    value = run(source)
    assert value == expected
    assert isinstance(value, bool) is isinstance(expected, bool)


@pytest.mark.parametrize(("source", "words"), [
    ("self.z", "no such key: z"), ("self.z == 1", "no such key: z"), ("self.c[5]", "index out of bounds: 5"),
    ("1 / 0", "division by zero"), ("1 % 0", "modulus by zero"), ("self.a + 'a'", "no such overload"),
    ("self.b < 1", "no such overload"), ("self.a ? 2 : 3", "no such overload"), ("int('x')", "cannot convert string"),
    ("9223372036854775807 + 1", "integer overflow"), ("self.a.all(x, true)", "no such overload"),
    ("self.b.x", "non-message type"), ("'a'.substring(5)", "greater than <string>.size()"),
    ("'a'.matches('(')", "invalid regular expression"), ("self.g + self.g", "no such overload"),
    ("size(self.a)", "no such overload"), ("'%d'.format(['x'])", "can only be used on numbers"),
    ("'%s'.format([])", "index 0 out of range"), ("[].max()", "max called on empty list"),
    ("quantity('1 Gi')", "quantities must match"), ("self.c.sum() + self.b", "no such overload"),
    ("['a', 1].isSorted()", "not supported between"), ("'a'.find('(')", "unterminated subpattern"),
    ("self.?a", "the result is an optional"),
])  # fmt: skip
def test_an_error_says_what_went_wrong(source: str, words: str) -> None:
    with pytest.raises(CelError, match=re.escape(words)) as caught:
        run(source)
    assert not re.search("INVALID_ARGUMENT|UNKNOWN|NOT_FOUND|OUT_OF_RANGE", str(caught.value))


def test_a_comprehension_that_is_too_long_says_that_the_limit_is_ours() -> None:
    each_with_each = "self.all(x, self.exists_one(y, x == y))"
    assert run(each_with_each, self=list(range(90))) is True
    with pytest.raises(CelError, match="comprehensions of more than 10,000 steps are not evaluated here"):
        run(each_with_each, self=list(range(120)))


@pytest.mark.parametrize("source", [
    "", "1 +", "self.", "(1", "[1, 2", "{'a' 1}", "self.a == ", "a b", "has(1)", "self.c.all(1, true)", "'open", "@",
    "nothing + 1", "self.unknownFunction()", "unknownFunction(1)", "(" * 500 + ")" * 500, "1 = 2", "1 + 'a'", "'a' < 1",
    "1 ? 2 : 3", "true + true", "size(1)", "1 == 1.0", "true == 1", "quantity(1)", "'a'.sum()", "[1].indexOf(self.?a)",
])  # fmt: skip
def test_what_cannot_be_compiled_is_an_error(source: str) -> None:
    with pytest.raises(CelError):
        program(source)


@pytest.mark.parametrize(("rule", "key", "words"), [
    ({"rule": "self.a == "}, "rule", "compilation failed: ERROR: <input>:1:11: Syntax error: mismatched input '<EOF>'"),
    ({"rule": "size(self) + 'a' == 2"}, "rule", "found no matching overload for '_+_' applied to '(int, string)'"),
    ({"rule": "size(self)"}, "rule", "cel expression must evaluate to a bool"),
    ({"rule": "true", "messageExpression": "size(self)"}, "messageExpression",
     "messageExpression must evaluate to a string"),
])  # fmt: skip
def test_a_definition_whose_rule_cannot_work_is_refused(rule: dict[str, str], key: str, words: str) -> None:
    spec = {"type": "object", "x-kubernetes-validations": [rule]}
    version = {"name": "v1", "served": True, "storage": True,
               "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}}  # fmt: skip
    crd = {"metadata": {"name": "things.a.dev"}, "spec": {
        "group": "a.dev", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
        "versions": [version]}}  # fmt: skip
    (error,) = rules_of("apiextensions.k8s.io/customresourcedefinitions").validate(crd)
    where = "spec.versions[0].schema.openAPIV3Schema.properties[spec].x-kubernetes-validations[0]"
    assert error.path == f"{where}.{key}"
    assert words in error.message


def test_and_or_absorb_errors_of_the_side_that_does_not_decide() -> None:
    for source, expected in (
        ("self.z == 1 && false", False), ("false && self.z == 1", False),
        ("self.z == 1 || true", True), ("true || self.z == 1", True),
        ("self.c.exists(x, x == 3 || self.z)", True), ("self.c.all(x, x < 2 && self.z)", False),
    ):  # fmt: skip
        assert run(source) is expected
    for source in ("self.z == 1 && true", "self.z == 1 || false", "self.c.all(x, x < 9 && self.z == 1)"):
        with pytest.raises(CelError, match="no such key"):
            run(source)


def test_it_knows_which_rules_compare_with_the_old_value() -> None:
    assert program("self.a == oldSelf.a").reads_old
    assert not program("self.c.all(oldSelf, oldSelf > 0)").reads_old
    assert not program("self.a == 'oldSelf'").reads_old


ROOT = Path(__file__).parents[4]


@lru_cache
def crd_schema() -> dict[str, Any]:
    """Nobody changes it."""
    text = (ROOT / "manifests/crds/posttrain.dev_posttrainjobs.yaml").read_text()
    crd = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def rules_in(schema: Any) -> list[str]:
    if isinstance(schema, dict):
        own = [rule["rule"] for rule in schema.get("x-kubernetes-validations", []) if isinstance(rule, dict)]
        return own + [rule for child in schema.values() for rule in rules_in(child)]
    return [rule for child in schema for rule in rules_in(child)] if isinstance(schema, list) else []


def test_every_rule_of_the_projects_definition_compiles() -> None:
    rules = rules_in(crd_schema())
    assert len(rules) > 20
    for rule in rules:
        assert program(rule).return_type == "BOOL"


def test_the_definitions_examples_pass_its_rules() -> None:
    walk = RuleWalk(crd_schema())
    from ptlocal.apiserver.schema.defaulting import apply_defaults

    for path in sorted((ROOT / "manifests/examples").glob("*.yaml")):
        for job in yaml.safe_load_all(path.read_text()):
            if job and job.get("kind") == "PostTrainJob":
                job = json.loads(json.dumps(job))
                apply_defaults(job, crd_schema())
                assert walk.errors(job) == [], path.name


def test_numbers_and_times_have_the_type_their_schema_gives() -> None:
    schema = {"type": "object", "properties": {
        "ratio": {"type": "number"}, "when": {"type": "string", "format": "date-time"},
        "wait": {"type": "string", "format": "duration"}},
        "x-kubernetes-validations": [{"rule": "self.ratio / 2.0 == 0.5"}, {"rule": "self.when.getFullYear() == 2026"},
                                     {"rule": "self.wait == duration('60s')"}]}  # fmt: skip
    assert RuleWalk(schema).errors({"ratio": 1, "when": "2026-01-01T00:00:00Z", "wait": "1m"}) == []


def test_an_unchanged_part_is_not_checked_again_but_a_changed_one_is() -> None:
    schema = {"type": "object", "properties": {
        "a": {"type": "integer", "x-kubernetes-validations": [{"rule": "self < 5", "message": "small"}]}}}  # fmt: skip
    walk = RuleWalk(schema)
    assert walk.errors({"a": 9}, {"a": 9}) == []
    assert [str(error) for error in walk.errors({"a": 8}, {"a": 9})] == ['a: Invalid value: "integer": small']
    assert [error.path for error in walk.errors({"a": 8})] == ["a"]


def test_fields_that_cel_cannot_write_have_escaped_names() -> None:
    names = {"namespace": "__namespace__", "a-b": "a__dash__b", "a.b/c": "a__dot__b__slash__c",
             "x__y": "x__underscores__y"}  # fmt: skip
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names},
              "x-kubernetes-validations": [{"rule": f"self.{word} == 1"} for word in names.values()]}  # fmt: skip
    assert RuleWalk(schema).errors(dict.fromkeys(names, 1)) == []
    assert len(RuleWalk(schema).errors(dict.fromkeys(names, 2))) == 4


def test_keys_of_maps_are_as_they_were_written() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"},
              "x-kubernetes-validations": [{"rule": "self['a-b'] == 1 && 'namespace' in self"}]}  # fmt: skip
    assert RuleWalk(schema).errors({"a-b": 1, "namespace": 2}) == []


def test_a_number_beyond_64_bits_is_a_double() -> None:
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {**free, "x-kubernetes-validations": [{"rule": "self.a == 1 && self.big > 1e20"}]}
    assert RuleWalk(schema).errors({"a": 1, "big": 2**70}) == []


def test_a_value_nested_too_deeply_is_refused() -> None:
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    (error,) = RuleWalk({**free, "x-kubernetes-validations": [{"rule": "has(self.a)"}]}).errors(deep)
    assert "the value is nested too deeply evaluating rule: has(self.a)" in error.message
