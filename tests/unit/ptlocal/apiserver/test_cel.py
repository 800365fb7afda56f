"""The CEL compiler: hand-computed cases, and agreement with the reference interpreter."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import celpy
import pytest
import yaml
from celpy.adapter import json_to_cel
from hypothesis import given, settings
from hypothesis import strategies as st

from ptlocal.apiserver.schema.cel import CelError, RuleWalk
from ptlocal.apiserver.schema.cel.compiling import compile_text

SELF = {
    "a": 1, "b": "text", "c": [1, 2, 3], "d": {"x": 1, "y": 2}, "e": None, "f": 1.5, "g": True,
    "items": [{"name": "p", "n1": 1}, {"name": "q"}],
}  # fmt: skip


def run(source: str, **variables: Any) -> Any:
    return compile_text(source, ("self", "oldSelf")).run({"self": SELF, **variables})


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
    ("type(1) == int", True), ("type('a') == string", True), ("1 == 1.0", True), ("true == 1", False),
    ("null == self.e", True), ("r'\\d' == '\\\\d'", True), ("'it\\'s'", "it's"), ("0x10", 16), ("1u", 1),
    ("duration('1h30m') > duration('89m')", True), ("timestamp('2026-01-01T00:00:00Z').getFullYear()", 2026),
    ("self.?z.orValue(5)", 5), ("self.?a.orValue(5)", 1), ("self.?z.hasValue()", False),
    ("quantity('1Gi').isGreaterThan(quantity('500Mi'))", True), ("isQuantity('1 Gi')", False),
    ("sets.contains([1, 2], [2])", True), ("'a1b22'.findAll('[0-9]+')", ["1", "22"]), ("isURL('https://a/b')", True),
    ("{'namespace': 1}.__namespace__", 1), ("{'a-b': 1}.a__dash__b", 1), ("// comment\n 1", 1),
])  # fmt: skip
def test_an_expression_has_this_value(source: str, expected: Any) -> None:
    value = run(source)
    assert value == expected
    assert isinstance(value, bool) is isinstance(expected, bool)


@pytest.mark.parametrize(("source", "words"), [
    ("self.z", "no such key: z"), ("self.z == 1", "no such key: z"), ("self.c[5]", "index out of bounds"),
    ("1 / 0", "division by zero"), ("1 % 0", "modulus by zero"), ("1 + 'a'", "no such overload"),
    ("'a' < 1", "no such overload"), ("1 ? 2 : 3", "a condition must be a bool"), ("int('x')", "type conversion error"),
    ("9223372036854775807 + 1", "integer overflow"), ("self.a.all(x, true)", "a comprehension needs a list or a map"),
    ("self.b.x", "unsupported type"), ("'a'.substring(5)", "index out of range"), ("'a'.matches('(')", "regexp"),
    ("true + true", "no such overload"), ("size(1)", "no such overload"), ("'%d'.format(['x'])", "could not format"),
    ("'%s'.format([])", "out of range"),
])  # fmt: skip
def test_an_error_says_what_went_wrong(source: str, words: str) -> None:
    with pytest.raises(CelError, match=words.replace("(", r"\(")):
        run(source)


@pytest.mark.parametrize("source", [
    "", "1 +", "self.", "(1", "[1, 2", "{'a' 1}", "self.a == ", "a b", "has(1)", "self.c.all(1, true)", "'open", "@",
    "nothing + 1", "self.unknownFunction()", "unknownFunction(1)", "(" * 500 + ")" * 500, "1 = 2",
])  # fmt: skip
def test_what_cannot_be_compiled_is_an_error(source: str) -> None:
    with pytest.raises(CelError):
        compile_text(source, ("self",))


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


def test_it_knows_which_variables_a_rule_reads() -> None:
    assert compile_text("self.a == oldSelf.a", ("self", "oldSelf")).names == {"self", "oldSelf"}
    assert compile_text("self.c.all(oldSelf, oldSelf > 0)", ("self", "oldSelf")).names == {"self"}


NUMBERS = st.integers(-50, 50)
EXPRESSIONS = st.recursive(
    st.one_of(NUMBERS.map(str).map(lambda s: f"({s})"), st.sampled_from(["self.a", "self.c[0]", "size(self.b)"])),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "%"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, st.sampled_from(["<", "<=", ">", "==", "!="]), inner, inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]} ? {t[3]} : 7)"),
        inner.map(lambda e: f"[1, 2, {e}].filter(x, x > {e}).size()"),
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=150)
@given(source=EXPRESSIONS)
def test_arithmetic_agrees_with_the_reference_interpreter(source: str) -> None:
    environment = celpy.Environment()
    program = environment.program(environment.compile(source))
    try:
        expected = int(program.evaluate({"self": json_to_cel(SELF)}))
    except celpy.CELEvalError:
        with pytest.raises(CelError):
            run(source)
        return
    assert run(source) == expected


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
        compile_text(rule, ("self", "oldSelf"))


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
