"""From examples to batches: nothing lost, nothing doubled, the same every time."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptapi.spec import DataSource
from pttrainer.data import rows, sft_examples
from pttrainer.data.batching import Batches, PackedRows, in_order, lay_out
from pttrainer.data.packing import best_fit_decreasing
from pttrainer.data.sft_examples import Example, Examples
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.errors import DataError
from pttrainer.rollout.context import Context
from pttrainer.runtime.distributed import sharding

CHAT = Chat(byte_tokenizer(), byte_tokenizer().template)


def example(*tokens: int) -> Example:
    return Example(np.array(tokens, np.int32), np.array([False] + [True] * (len(tokens) - 1)))


def many(count: int) -> list[Example]:
    return [example(*range(i, i + 2 + i % 7)) for i in range(count)]


def made(tmp_path: Path, *lines: dict[str, Any], length: int = 64, **options: Any) -> Examples:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    return sft_examples.make(
        rows.load(DataSource(uri=f"file://{tmp_path}/rows.jsonl"), "spec.data.train"), CHAT, length, **options
    )


@given(st.lists(st.integers(1, 50), max_size=60))
def test_packing_loses_and_doubles_nothing_and_fills_no_row_over(lengths: list[int]) -> None:
    packed = best_fit_decreasing(lengths, 50)
    assert sorted(i for row in packed for i in row) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= 50 for row in packed)


@given(st.lists(st.integers(1, 50), max_size=60))
def test_no_two_rows_could_have_been_one(lengths: list[int]) -> None:
    used = sorted(sum(lengths[i] for i in row) for row in best_fit_decreasing(lengths, 50))
    assert len(used) < 2 or used[0] + used[1] > 50


def test_packing_takes_the_row_with_the_least_room() -> None:
    assert best_fit_decreasing([6, 5, 4, 3, 2], 10) == [[0, 2], [1, 3, 4]]


def test_a_row_is_laid_out_token_by_token() -> None:
    row = lay_out([example(1, 2, 3), Example(np.array([7, 8]), np.array([False, False]))], 5)
    assert row["tokens"].tolist() == [1, 2, 7, 0, 0]
    assert row["targets"].tolist() == [2, 3, 8, 0, 0]
    assert row["positions"].tolist() == [0, 1, 0, 0, 0]
    assert row["segment_ids"].tolist() == [1, 1, 2, 0, 0]
    assert row["mask"].tolist() == [1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("devices", "longest", "width"),
    [(1, 20, 64), (1, 65, 128), (1, 5000, 4096), (4, 20, 1024), (4, 1025, 2048), (4, 4000, 4096)],
)
def test_rows_that_are_not_packed_have_whole_tiles_for_each_device(devices: int, longest: int, width: int) -> None:
    spec = SimpleNamespace(training=SimpleNamespace(sequence_length=4096))
    here = SimpleNamespace(mesh=sharding.make_mesh((1, 1, 1, devices)), spec=spec)
    assert Context.row_width(cast("Context", here), longest) == width


def batches(seed: int = 3, count: int = 40) -> Batches:
    return Batches(PackedRows(many(count), 16, pack=True), 4, seed)


def test_the_same_seed_gives_the_same_batches_and_another_seed_others() -> None:
    first, same, other = batches(), batches(), batches(seed=4)
    for _ in range(5):
        a, b = next(first), next(same)
        np.testing.assert_array_equal(a.tokens_BT, b.tokens_BT)
    assert any((next(first).tokens_BT != next(other).tokens_BT).any() for _ in range(3))


def test_restored_state_continues_with_the_very_next_batch() -> None:
    straight, broken = batches(), batches()
    for _ in range(7):
        next(straight)
        next(broken)
    state = json.loads(json.dumps(broken.state()))
    fresh = batches()
    fresh.restore(state)
    for _ in range(7):
        np.testing.assert_array_equal(next(fresh).tokens_BT, next(straight).tokens_BT)


def test_an_epoch_holds_every_row_once_and_the_next_is_in_another_order() -> None:
    packed = PackedRows(many(40), 16, pack=True)
    result = Batches(packed, 1, seed=0)
    order = [[tuple(next(result).tokens_BT[0].tolist()) for _ in range(len(packed))] for _ in range(2)]
    assert (
        sorted(order[0]) == sorted(order[1]) == sorted(tuple(packed[i]["tokens"].tolist()) for i in range(len(packed)))
    )
    assert order[0] != order[1]


def test_weights_of_a_batch_sum_to_one() -> None:
    assert next(batches()).weight_BT.sum() == pytest.approx(1.0)


def test_evaluation_sees_every_row_once_and_filling_rows_do_not_count() -> None:
    packed = PackedRows(many(21), 16, pack=True)
    result = in_order(packed, 4)
    assert sum(b.mask_BT.sum() for b in result) == sum(e.length for e in many(21))
    assert {b.tokens_BT.shape for b in result} == {(4, 16)}


def test_long_rows_are_cut_at_the_right_and_rows_with_nothing_to_learn_are_dropped(tmp_path: Path) -> None:
    long_prompt, short = {"prompt": "x" * 80, "completion": "y"}, {"prompt": "1", "completion": "2"}
    result = made(tmp_path, long_prompt, short, {"prompt": "1", "completion": "y" * 80}, length=32)
    assert (result.rows, result.cut, result.dropped) == (3, 2, 1)
    assert [e.length for e in result.examples] == [6, 32]


def test_the_prompt_is_learned_only_by_request(tmp_path: Path) -> None:
    row = {"prompt": "ab", "completion": "c"}
    assert made(tmp_path, row).examples[0].learned.sum() == 2
    assert made(tmp_path, row, learn_prompt=True).examples[0].learned.sum() == 7


def test_a_data_set_with_nothing_to_learn_names_the_template_and_the_length(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none of the 2 rows has a token to learn .*chat template .*sequenceLength 8"):
        made(tmp_path, *[{"prompt": "long enough prompt", "completion": "a"}] * 2, length=8)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, r"rows are preferences \(chosen, rejected\)"),
        ({"prompt": "a", "reply": "b"}, "rows are prompts without an answer"),
    ],
)
def test_rows_without_a_text_to_learn_are_not_for_sft(tmp_path: Path, row: dict[str, str], words: str) -> None:
    with pytest.raises(DataError, match=words + "; accepted for sft: .*; hint: set columns.completion to the column"):
        made(tmp_path, row)


def test_a_row_that_the_template_refuses_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}))
    read = rows.load(DataSource(uri=f"file://{tmp_path}/rows.jsonl"), "spec.data.train")
    with pytest.raises(DataError, match=r"rows\.jsonl line 1: chat template: no"):
        sft_examples.make(read, Chat(byte_tokenizer(), "{{ raise_exception('no') }}"), 64)


def test_gsm8k_as_it_is_has_no_row_without_something_to_learn() -> None:
    path = Path(__file__).parents[5] / "shared/data/gsm8k/train.jsonl"
    if not path.exists():
        pytest.skip("the shared data are not on this machine")
    read = rows.load(DataSource(uri=f"file://{path}", limit=200), "spec.data.train")
    result = sft_examples.make(read, CHAT, 2048)
    assert read.format == "prompt-answer"
    assert (len(result.examples), result.dropped) == (200, 0)


def taught(row: dict[str, Any], entries: int, k: int = 2, **changes: Any) -> dict[str, Any]:
    """A row with a teacher's predictions: ids 1, 2, … and log-probs −0.1, −0.2, …, one entry after the other."""
    count = entries * k
    table = np.arange(1, count + 1).reshape(entries, k)
    return {**row, "teacher_ids": table.tolist(), "teacher_logprobs": (-0.1 * table).tolist(), **changes}


def test_what_a_teacher_said_stands_at_the_tokens_that_it_is_about_packed_or_not(tmp_path: Path) -> None:
    rows_ = [taught({"prompt": "a", "completion": "bc"}, 3), taught({"prompt": "dd", "completion": "e"}, 2)]
    result = made(tmp_path, *rows_, with_teacher=True)
    for pack in (True, False):
        packed = PackedRows(result.examples, 32, pack=pack)
        row = packed[0]
        at = np.flatnonzero(row["mask"])
        wanted = [[1, 2], [3, 4], [5, 6]] + ([[1, 2], [3, 4]] if pack else [])
        assert row["teacher_ids"][at].tolist() == wanted
        np.testing.assert_allclose(row["teacher_logps"][at], -0.1 * np.array(wanted), rtol=1e-6)
        assert not row["teacher_ids"][row["mask"] == 0].any()
    batch = in_order(PackedRows(result.examples, 32, pack=True), 2)[0]
    assert batch.teacher_ids_BTK.shape == (2, 32, 2)


def test_what_a_teacher_said_is_cut_with_its_row(tmp_path: Path) -> None:
    (example_,) = made(tmp_path, taught({"prompt": "a", "completion": "bc"}, 3), with_teacher=True, length=5).examples
    assert example_.learned.sum() == len(example_.teacher.ids) < 3


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "a", "completion": "bc"}, "line 1: no 'teacher_ids' as a list of lists"),
        (taught({"prompt": "a", "completion": "bc"}, 2), "has 2 entries; accepted: 3, one per token"),
        (taught({"prompt": "a", "completion": "bc"}, 3, teacher_ids=[[1]] * 3), "is 3 x 1 and teacher_logprobs 3 x 2"),
        (taught({"prompt": "a", "completion": "bc"}, 3, teacher_ids=[[1, 999]] * 3), "holds 1 to 999; accepted: ids"),
        (taught({"prompt": "a", "completion": "bc"}, 3, teacher_logprobs=[[0.5, 0.5]] * 3), "are not all log-probs"),
        (taught({"prompt": "a", "completion": "bc"}, 3, teacher_ids=[[1, 2], [1], [1, 2]]), "no 'teacher_ids'"),
    ],
)  # fmt: skip
def test_what_no_teacher_can_have_said_is_refused(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        made(tmp_path, row, with_teacher=True)
