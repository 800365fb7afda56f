"""Rewards as functions: what they accept as right and what not."""

import json
import time
from fractions import Fraction
from pathlib import Path

import pytest

from pttrainer.rewards.builtin import choice, format, gsm8k
from pttrainer.rewards.factory import IN_PROCESS

GSM8K = Path(__file__).resolve().parents[5] / "shared" / "data" / "gsm8k" / "train.jsonl"


def test_gsm8k_reads_gold_numbers_that_are_no_text() -> None:
    assert gsm8k.reward("", "#### 72", {"answer": 72}) == 1.0


@pytest.mark.parametrize(
    "text",
    ["9" * 200_000, "1,111" * 50_000, "<answer>" * 50_000, "answer is " * 50_000, "1 " * 100_000, "-$" * 100_000]
    + [part * 40_000 for part in (r"\boxed{", r"\text{", r"\frac{1", "1\\,000", "1½", "**", "_", "1e9", "1 (", "1{,}")],
)
def test_rewards_that_run_in_the_trainer_cannot_hang(text: str) -> None:
    began = time.process_time()  # seconds of the processor: a busy machine does not count
    for function in (gsm8k.reward, choice.reward, format.reward):
        assert function("", text, {"answer": "72"}) == 0.0
    assert time.process_time() - began < 10, "a search that looks again from each place takes minutes"


@pytest.mark.skipif(not GSM8K.exists(), reason="the GSM8K file is not here")
def test_gsm8k_scores_every_gold_answer_one_and_every_changed_number_zero() -> None:
    rows = [json.loads(line) for line in GSM8K.read_text().splitlines()]
    assert len(rows) == 7473
    for row in rows:
        reasoning, _, number = row["answer"].rpartition("####")
        changed = f"{reasoning}#### {int(number.replace(',', '')) + 1}"
        assert gsm8k.reward(row["question"], row["answer"], row) == 1.0, row
        assert gsm8k.reward(row["question"], changed, row) == 0.0, row


def test_final_number_is_exact() -> None:
    assert gsm8k.final_number("0.1") + gsm8k.final_number("0.2") == Fraction(3, 10)  # type: ignore[operator]


@pytest.mark.parametrize(
    "text",
    [
        "<think>a</think><answer>b</answer>",
        " <think>a\nb</think>\n<answer>4</answer>\n",
        "<reasoning>a</reasoning> <answer>b</answer>",
    ],
)
def test_format_accepts_reasoning_and_answer_in_their_tags(text: str) -> None:
    assert format.reward("", text, {}) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "<think>a</think>",
        "<answer>b</answer><think>a</think>",
        "<think>a</think><answer>b</answer> and more",
        "so <think>a</think><answer>b</answer>",
        "<think>a</think> well <answer>b</answer>",
        "<think>a</think><answer>b</answer><answer>c</answer>",
        "<think></think><answer>b</answer>",
        "<think>a</think><answer> </answer>",
        "<think>a</reasoning><answer>b</answer>",
    ],
)
def test_format_refuses_every_other_form(text: str) -> None:
    assert format.reward("", text, {}) == 0.0


def test_format_with_a_pattern_searches_over_lines() -> None:
    reward = format.pattern_reward(r"^Answer:.*\d$")
    assert reward("", "Answer:\n4", {}) == 1.0
    assert reward("", "The Answer: 4", {}) == 0.0


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("B", 1.0),
        ("(b).", 1.0),
        ("I think a is wrong. The answer is (B) because of gravity", 1.0),
        ("<answer>B</answer>", 1.0),
        ("#### B", 1.0),
        ("Answer: C, then again the answer is B", 1.0),
        ("#### A or B", 0.0),
        ("C", 0.0),
        ("Because", 0.0),
        ("I would say B", 0.0),
        ("", 0.0),
    ],
)
def test_choice_wants_one_letter_that_is_marked_or_alone(completion: str, score: float) -> None:
    assert choice.reward("", completion, {"answer": "B"}) == score


def test_every_builtin_module_has_a_reward() -> None:
    for module in (gsm8k, format, choice):
        assert module.__name__ in IN_PROCESS.values()
