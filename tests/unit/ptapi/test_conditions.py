"""Conditions mean the same in CEL and in Python, however they are combined."""

from __future__ import annotations

from itertools import product

import pytest

from ptapi.spec.base import SpecModel
from ptapi.validation.condition import Condition, compare, equals, filled, has, unset
from ptlocal.apiserver.schema.cel.validation_rules import program


class Node(SpecModel):
    a: int | None = None
    b: int | None = None
    c: list[int] = []


A, B, C = has("a"), has("b"), filled("c")
IS_LESS = unset("a") | unset("b") | compare("a", "<", "b")


@pytest.mark.parametrize(
    "condition",
    [
        (A | B) & C, A & B | C, ~(A | B) & C, ~(A & B), ~~A, A ^ C, A.iff(C), ~A ^ (B | C), (A ^ B).iff(C), IS_LESS,
        ~IS_LESS & C, A & ~equals("a", 1), (A & equals("a", 1)) ^ C, ~(A ^ B) | C,
    ],
    ids=lambda condition: condition.cel,
)  # fmt: skip
def test_combined_conditions_hold_for_the_same_objects_in_both_languages(condition: Condition) -> None:
    results = set()
    for a, b, c in product((None, 1, 2), (None, 1, 2), ([], [1])):
        node = Node(a=a, b=b, c=c)
        document = node.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)
        results.add(condition.holds(node))
        assert (program(condition.cel).run({"self": document}) is True) == condition.holds(node), document
    assert results == {True, False}


def test_what_cel_cannot_say_python_alone_checks() -> None:
    python = Condition("", lambda node: node.a == 1)
    assert {each.cel for each in (python | A, A & python, ~python, A ^ python)} == {""}
    assert (python | A).holds(Node(a=1))
