"""Data sets as TRL names them: of the hub, by name, configuration and split, or files."""

import re
from typing import Any

from ptctl.importers.draft import Draft
from ptctl.importers.huggingface.words import Words

_SLICE = re.compile(r"(?P<split>[\w.-]+)(?:\[:(?P<rows>\d+)\])?")
_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_FILES = (".jsonl", ".json", ".csv", ".parquet", ".arrow")


def put_data(draft: Draft, words: Words) -> None:
    """Write `data.train`, and `data.eval` where it is evaluated."""
    if mixture := words.maps("datasets"):
        return _put_mixture(draft, words, mixture)
    name, config = words.text("dataset_name"), words.text("dataset_config")
    put_source(draft, words, "spec.data.train", name, config, words.text("dataset_train_split"))
    column = words.text("dataset_text_field")
    if words.is_given("dataset_text_field") and column != "text":
        draft.put("spec.data.train.columns", {"text": column}, "dataset_text_field")
    split = words.text("dataset_test_split")
    if words.text("eval_strategy") != "no":
        put_source(draft, words, "spec.data.eval", name, config, split)
    elif words.is_given("dataset_test_split"):
        draft.note(words.shown("dataset_test_split"), "not evaluated, because eval_strategy is unset: data.eval")
    return None


def _put_mixture(draft: Draft, words: Words, mixture: list[dict[str, Any]]) -> None:
    first = mixture[0]
    path, config, split = (str(first.get(key) or "") for key in ("path", "name", "split"))
    put_source(draft, words, "spec.data.train", path, config, split or "train")
    for key in first:
        if key not in ("path", "name", "split"):
            draft.change(f"datasets: {key}: {first[key]}", "the data set is read whole, by its own column names")
    for other in mixture[1:]:
        draft.change(f"datasets: {other}", "one data set alone is trained on: merge them into one file, data.train.uri")
    if words.is_given("test_split_size"):
        draft.change(words.shown("test_split_size"), "no rows are held out: data.eval is a set of its own")
        words.take("test_split_size")


def put_source(draft: Draft, words: Words, field: str, name: str, config: str, split: str) -> None:
    """Write one data set, or leave it to fill in where only the machine has it."""
    path = f"{field}.uri"
    if name.startswith("gs://"):
        draft.put(path, name, name)
    elif _HUB.fullmatch(name) and not name.endswith(_FILES):
        parts = ["hf://datasets", name, *([config] if config and config != "default" else [])]
        draft.put(path, "/".join(parts), name)
        put_split(draft, field, split)
    else:
        where = f"; {name} is on the machine that it ran on: copy it" if name else ""
        draft.blank(path, "gs://bucket/data.jsonl", f"the data: gs://… or hf://datasets/…{where}")
        if config:
            draft.note(f"dataset_config: {config}", "a directory below the data set's URI")


def put_split(draft: Draft, field: str, split: str) -> None:
    """Write a split, and how many of its rows: `train[:1000]`."""
    if match := _SLICE.fullmatch(split):
        draft.put(f"{field}.split", match["split"], split)
        if match["rows"]:
            draft.put(f"{field}.limit", int(match["rows"]), split)
    elif split:
        draft.put(f"{field}.split", split.partition("[")[0], split)
        draft.change(f"split: {split}", "the whole split; accepted: NAME and NAME[:ROWS]")
