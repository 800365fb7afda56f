"""Greedy answers against gold ones, worked by hand."""

import pytest

from pttrainer.rollout.evaluation import answer_metrics

ALL = ["exactMatch", "accuracy", "macroF1"]


def test_a_case_worked_by_hand() -> None:
    gold = ["spam", "spam", "ham", "ham", "news", "news"]
    answers = ["Spam", "ham", "it is ham.", "ham", "spam or news", " NEWS\n"]
    metrics = answer_metrics.measure(ALL, answers, gold, [])
    assert metrics["exact_match"] == pytest.approx(3 / 6)  # Spam, ham, NEWS
    assert metrics["accuracy"] == pytest.approx(4 / 6)  # and "it is ham."
    # spam: tp 1, fp 0, fn 1; ham: tp 2, fp 1, fn 0; news: tp 1, fp 0, fn 1
    assert metrics["macro_f1"] == pytest.approx((2 / 3 + 4 / 5 + 2 / 3) / 3)


def test_only_what_is_asked_for_is_there() -> None:
    assert answer_metrics.measure(["macroF1"], ["a"], ["a"], []) == {"macro_f1": 1.0}
    assert answer_metrics.measure([], ["a"], ["a"], []) == {}


def test_a_label_of_the_job_that_never_occurs_counts_as_zero() -> None:
    assert answer_metrics.measure(["macroF1"], ["a", "b"], ["a", "b"], ["A", "b", "c"])["macro_f1"] == pytest.approx(
        2 / 3
    )


def test_a_model_that_always_says_the_largest_class_has_the_f1_of_it_alone() -> None:
    metrics = answer_metrics.measure(ALL, ["a"] * 4, ["a", "a", "a", "b"], [])
    assert metrics["accuracy"] == pytest.approx(0.75)
    assert metrics["macro_f1"] == pytest.approx((2 * 3 / (2 * 3 + 1) + 0) / 2)


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("not spam", "not spam"),
        ("this is not spam", "not spam"),
        ("spam, or not spam", None),
        ("spam. yes, spam", "spam"),
        ("spam!", "spam"),
        ("spammer", None),
        ("", None),
        ("spam, ham", None),
        ("c++", "c++"),
        ("i write c++ daily", "c++"),
    ],
)
def test_the_label_of_an_answer(answer: str, label: str | None) -> None:
    assert answer_metrics.label(answer, ["spam", "not spam", "ham", "c++"]) == label


def test_texts_are_compared_without_case_and_extra_space() -> None:
    assert answer_metrics.normalised("  The\tGreat \n Answer ") == "the great answer"
    assert answer_metrics.measure(["exactMatch"], ["STRASSE"], ["straße"], [])["exact_match"] == 1.0
