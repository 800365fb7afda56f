"""From preference rows to pairs of examples: every form of row, one prompt, cut from the left."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptapi.spec import DataSource
from pttrainer.data import rows
from pttrainer.data.preferences import pairs as preference_pairs
from pttrainer.data.preferences.pairs import Pairs
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.errors import DataError

TOKENIZER = byte_tokenizer()
CHAT = Chat(TOKENIZER, TOKENIZER.template)
PLAIN = Chat(TOKENIZER, None)
USER = {"role": "user", "content": "1+1?"}
YES, NO = ({"role": "assistant", "content": text} for text in ("2", "33"))


def made(
    tmp_path: Path, *lines: dict[str, Any], chat: Chat = CHAT, length: int = 64, system: str | None = None
) -> Pairs:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    read = rows.load(DataSource(uri=f"file://{tmp_path}/rows.jsonl"), "spec.data.train", system)
    return preference_pairs.make(read, chat, length)


def text(ids: Any) -> str:
    return TOKENIZER.decode([int(i) for i in ids], skip_special=False)


def shown(example: Any) -> tuple[str, str]:
    """What is given and what is learned."""
    start = int(np.argmax(example.learned))
    assert example.learned[start:].all()
    return text(example.tokens[:start]), text(example.tokens[start:])


PROMPT = "<|bos|><|user|>1+1?<|end|><|assistant|>"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "1+1?", "chosen": "2", "rejected": "33"},
        {"prompt": [USER], "chosen": [YES], "rejected": [NO]},
        {"chosen": [USER, YES], "rejected": [USER, NO]},
        {"prompt": "1+1?", "chosen": [USER, YES], "rejected": [USER, NO]},
        {"prompt": [USER], "chosen": "2", "rejected": "33"},
        {"question": "1+1?", "chosen": "2", "rejected": "33"},
    ],
)
def test_every_form_of_a_row_becomes_the_same_pair(tmp_path: Path, row: dict[str, Any]) -> None:
    (pair,) = made(tmp_path, row).pairs
    assert shown(pair.chosen) == (PROMPT, "2<|end|>")
    assert shown(pair.rejected) == (PROMPT, "33<|end|>")


def test_texts_without_a_prompt_share_their_beginning_and_keep_the_space_before_the_difference(tmp_path: Path) -> None:
    (pair,) = made(tmp_path, {"chosen": "Sky is blue", "rejected": "Sky is red"}, chat=PLAIN).pairs
    assert shown(pair.chosen) == ("<|bos|>Sky is", " blue<|end|>")
    assert shown(pair.rejected) == ("<|bos|>Sky is", " red<|end|>")


def test_earlier_turns_of_the_assistant_are_prompt(tmp_path: Path) -> None:
    before = [USER, YES, {"role": "user", "content": "sure?"}]
    (pair,) = made(tmp_path, {"chosen": [*before, YES], "rejected": [*before, NO]}).pairs
    assert shown(pair.chosen)[1] == "2<|end|>"
    assert shown(pair.chosen)[0] == shown(pair.rejected)[0]


def test_answers_of_several_turns_learn_what_the_assistant_says_alone(tmp_path: Path) -> None:
    more = [NO, {"role": "user", "content": "no"}, YES]
    (pair,) = made(tmp_path, {"chosen": [USER, YES], "rejected": [USER, *more]}).pairs
    assert text(pair.rejected.tokens[pair.rejected.learned]) == "33<|end|>2<|end|>"


def test_the_system_prompt_of_the_job_opens_both(tmp_path: Path) -> None:
    (pair,) = made(tmp_path, {"prompt": "1+1?", "chosen": "2", "rejected": "33"}, system="Add.").pairs
    assert "Add." in shown(pair.chosen)[0]
    assert shown(pair.chosen)[0] == shown(pair.rejected)[0]


def test_a_pair_that_is_too_long_loses_the_beginning_of_its_prompt_on_both_sides(tmp_path: Path) -> None:
    result = made(tmp_path, {"prompt": "abcdefghij", "chosen": "2", "rejected": "4444"}, chat=PLAIN, length=9)
    (pair,) = result.pairs
    assert shown(pair.chosen) == ("fghij", "2<|end|>")
    assert shown(pair.rejected) == ("fghij", "4444<|end|>")
    assert (result.cut, result.lengths) == (1, [16])
    assert pair.length == 9


def test_only_an_answer_that_alone_is_too_long_loses_its_end(tmp_path: Path) -> None:
    (pair,) = made(tmp_path, {"prompt": "abc", "chosen": "2", "rejected": "456789"}, chat=PLAIN, length=4).pairs
    assert shown(pair.chosen) == ("c", "2<|end|>")
    assert shown(pair.rejected) == ("c", "4567")


def test_chosen_rows_come_first_and_every_pair_has_the_same_weight(tmp_path: Path) -> None:
    lines = [{"prompt": "a", "chosen": "1" * n, "rejected": "2" * (n + 3)} for n in (1, 5)]
    batch = preference_pairs.to_pairs_batch([*made(tmp_path, *lines).pairs, None], 64)
    assert [TOKENIZER.decode([int(t) for t in row if t]).strip("\0") for row in batch.targets_BT] == [
        "a1", "a11111", "", "a2222", "a22222222", "",
    ]  # fmt: skip
    assert batch.mask_BT.sum(axis=1).tolist() == [2, 6, 0, 5, 9, 0]
    assert batch.weight_BT.sum(axis=1).tolist() == [0.25, 0.25, 0.0, 0.25, 0.25, 0.0]
    assert ((batch.weight_BT > 0).sum(axis=1) == [1, 1, 0, 1, 1, 0]).all()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"chosen": "2", "rejected": "33"}, "line 1: no prompt; accepted: a prompt column"),
        ({"chosen": [USER, YES], "rejected": [USER]}, "line 1: no answer in one of the two"),
        ({"chosen": [USER, YES], "rejected": [USER, {**USER, "content": "?"}]}, "says nothing after the prompt"),
        ({"messages": [USER, YES]}, "rows are messages; accepted for dpo: preference"),
    ],
)  # fmt: skip
def test_rows_that_are_no_preference_are_refused_by_name(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        made(tmp_path, row)
