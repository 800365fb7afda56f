"""Selectors against labels and fields."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptlocal.apiserver.errors import StatusError
from ptlocal.apiserver.kinds.builtin_kinds import builtin_kinds
from ptlocal.apiserver.storage.selectors import Selectable, parse

PODS = next(kind for kind in builtin_kinds() if kind.storage_key == "/pods")
LABELS = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y", ""]))


def labelled(**labels: str) -> Selectable:
    return Selectable(labels, {})


@given(labels=LABELS, value=st.sampled_from(["x", "y"]))
def test_a_selector_and_its_negation_split_everything(labels: dict[str, str], value: str) -> None:
    what = Selectable(labels, {})
    for yes, no in ((f"a={value}", f"a!={value}"), (f"a in ({value})", f"a notin ({value})"), ("a", "!a")):
        assert parse(PODS, yes, None).matches(what) is not parse(PODS, no, None).matches(what)


@given(labels=LABELS)
def test_a_comma_means_and(labels: dict[str, str]) -> None:
    what = Selectable(labels, {})
    both = parse(PODS, "a=x,b=y", None).matches(what)
    assert both is (parse(PODS, "a=x", None).matches(what) and parse(PODS, "b=y", None).matches(what))


def test_commas_in_parentheses_do_not_split() -> None:
    selector = parse(PODS, "app in (x, y),tier notin (a,b),!gone", None)
    assert selector.matches(labelled(app="y"))
    assert not selector.matches(labelled(app="y", tier="a"))
    assert not selector.matches(labelled(app="y", gone=""))


def test_an_empty_value_is_a_value() -> None:
    assert parse(PODS, "a=", None).matches(labelled(a=""))
    assert not parse(PODS, "a=", None).matches(labelled())


def test_fields_of_a_pod() -> None:
    obj = {"metadata": {"name": "p", "namespace": "n", "labels": {"x": "y"}}, "spec": {"nodeName": "node"},
           "status": {"phase": "Running"}}  # fmt: skip
    what = Selectable.of(PODS, obj)
    assert parse(PODS, None, "metadata.name=p,spec.nodeName==node,status.phase!=Failed").matches(what)
    assert not parse(PODS, None, "status.phase=Failed").matches(what)
    assert parse(PODS, "", "").is_everything


@pytest.mark.parametrize(("labels", "fields"), [("a b", None), ("=x", None), ("a in x", None), ("a=(x)", None),
                                                (None, "spec.foo=1"), (None, "nonsense")])  # fmt: skip
def test_nonsense_is_a_bad_request(labels: str | None, fields: str | None) -> None:
    with pytest.raises(StatusError) as error:
        parse(PODS, labels, fields)
    assert error.value.code == 400
