"""Predicates mean the same in CEL and in Python, however they are combined."""

from itertools import product

import pytest

from ptapi.spec.base import SpecModel
from ptapi.validation.predicate import Predicate, compare, equals, filled, has, unset
from ptlocal.apiserver.schema.cel import activation, program


class Node(SpecModel):
    a: int | None = None
    b: int | None = None
    c: list[int] = []


A, B, C = has("a"), has("b"), filled("c")
IS_LESS = unset("a") | unset("b") | compare("a", "<", "b")


@pytest.mark.parametrize(
    "predicate",
    [
        (A | B) & C, A & B | C, ~(A | B) & C, ~(A & B), ~~A, A ^ C, A.iff(C), ~A ^ (B | C), (A ^ B).iff(C), IS_LESS,
        ~IS_LESS & C, A & ~equals("a", 1), (A & equals("a", 1)) ^ C, ~(A ^ B) | C,
    ],
    ids=lambda predicate: predicate.cel,
)  # fmt: skip
def test_combined_predicates_hold_for_the_same_objects_in_both_languages(predicate: Predicate) -> None:
    nodes = [Node(a=a, b=b, c=c) for a, b, c in product((None, 1, 2), (None, 1, 2), ([], [1]))]
    python = [predicate.holds(node) for node in nodes]
    assert [
        program(predicate.cel).run(activation({"self": node.model_dump(exclude_defaults=True)})) for node in nodes
    ] == python
    assert set(python) == {True, False}


def test_what_cel_cannot_say_python_alone_checks() -> None:
    python = Predicate("", A.holds)
    assert {each.cel for each in (python | A, A & python, ~python, A ^ python)} == {""}
