"""Axolotl's lists of data sets: where each is, and how its rows are read."""

from typing import Any

from ptctl.errors import InputError
from ptctl.importers.draft import Draft
from ptctl.importers.huggingface import data
from ptctl.importers.huggingface.algorithms import PAIRS
from ptctl.importers.huggingface.words import Words

_MESSAGES = ("chat_template", "sharegpt", "messages.chat")
_USUAL = {
    "messages": ("messages", "conversations"),
    "text": ("text",),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
}
_MAPPINGS = ({"role": "role", "content": "content"}, {"role": "from", "content": "value"})
_INSTRUCTIONS = "instruction (or prompt) and output by the model's own template; the column input is not read"
_READ = ("path", "name", "split", "type", "revision")
_COLUMNS = {
    "field_messages": "messages", "field_prompt": "prompt", "field_instruction": "prompt", "field_output": "completion",
    "field_chosen": "chosen", "field_rejected": "rejected", "field": "text",
    "field_completion": "completion", "field_label": "label",
}  # fmt: skip


def put_data(draft: Draft, words: Words, trainer: str) -> None:
    """Write `data.train` and `data.eval`."""
    pretraining = [{"type": "completion", **one} for one in words.maps("pretraining_dataset")]
    sets = pretraining or words.maps("datasets")
    _put_set(draft, words, "spec.data.train", sets[0] if sets else {}, trainer)
    for other in sets[1:]:
        draft.change(f"datasets: {other}",
                     "one data set alone is trained on: merge them into one file, data.train.uri")  # fmt: skip
    held_out = words.maps("test_datasets")
    if held_out:
        _put_set(draft, words, "spec.data.eval", held_out[0], trainer)
        for other in held_out[1:]:
            draft.note(f"test_datasets: {other.get('path')}", "data.eval is one data set")
    if words.is_given("val_set_size") and words.number("val_set_size"):
        draft.change(words.shown("val_set_size"), "no rows are held out and all train: data.eval is a set of its own")


def _put_set(draft: Draft, words: Words, field: str, one: dict[str, Any], trainer: str) -> None:
    files, name = one.get("data_files"), str(one.get("path") or "")
    files = files if isinstance(files, list) else [files] if files else []
    if not all(isinstance(file, str) for file in files):
        raise InputError(f"datasets: data_files: {files}: accepted: a file, or a list of files")
    split = str(one.get("split") or ("train" if field.endswith("train") and not files else ""))
    if files and name not in ("json", "csv", "parquet", "text", "arrow"):
        draft.put(f"{field}.uri", f"hf://datasets/{name}/{files[0]}", "data_files")
        data.put_split(draft, field, "")
    else:
        data.put_source(draft, words, field, files[0] if files else name, str(one.get("name") or ""), split)
    for other in files[1:]:
        draft.change(
            f"data_files: {other}", "one file alone is trained on; a pattern such as part-*.jsonl takes several"
        )
    if revision := one.get("revision"):
        draft.put(f"{field}.revision", str(revision), "revision")
    _put_rows(draft, field, one, trainer)


def _put_rows(draft: Draft, field: str, one: dict[str, Any], trainer: str) -> None:
    """Write the format and the columns."""
    kind = one.get("type")
    own = kind if isinstance(kind, dict) else {}
    name = "" if own else str(kind or "")
    known = _format(draft, name, own, trainer)
    if known:
        draft.put(f"{field}.format", known, "type")
    columns = {}
    for word, value in {**one, **own}.items():
        column = "prompt" if trainer in PAIRS and word == "field_messages" else _COLUMNS.get(word)
        if column and value and value not in _USUAL.get(column, ()):
            columns[column] = value
        elif not column and word not in (*_READ, "data_files"):
            _note_setting(draft, word, value)
    if columns:
        draft.put(f"{field}.columns", columns, "field")


def _format(draft: Draft, name: str, own: dict[str, Any], trainer: str) -> str | None:
    """Return the format of a type's rows; what its template writes around them is said to be different."""
    if trainer in PAIRS:
        if not name.startswith("chat_template"):
            draft.change(f"type: {name or 'of your own'}",
                         "prompt, chosen and rejected by the model's own template")  # fmt: skip
        return "preference"
    if trainer == "kto":
        if not name.startswith("chat_template"):
            draft.change(f"type: {name or 'of your own'}", "prompt, completion and label by the model's own template")
        return None
    if trainer != "sft":
        if name:
            draft.change(
                f"type: {name}", "rows are read as they are; rewards compare with the column answer or solution"
            )
        return None
    if name.startswith(_MESSAGES):
        return "messages"
    if name.startswith(("completion", "pretrain")):
        return "text"
    if name.startswith("alpaca") or own:
        draft.change(f"type: {name or 'of your own'}", _INSTRUCTIONS)
        return "prompt-completion"
    if name:
        draft.change(f"type: {name}", "rows are read by their columns: data.train.format")
    return None


def _note_setting(draft: Draft, word: str, value: Any) -> None:
    part = f"datasets: {word}: {value}"
    if word in ("ds_type", "trust_remote_code"):
        return draft.note(part, "the files' suffixes say how they are read")
    if word == "message_property_mappings" and value in _MAPPINGS:
        return draft.note(part, "read so here, too")
    if word == "roles_to_train" and value in (["assistant"], ["gpt"], ["assistant", "gpt"], ["gpt", "assistant"]):
        return draft.note(part, "the assistant's turns are learned here, too")
    if word == "train_on_eos" and value == "turn":
        return draft.note(part, "each turn's end is learned here, too")
    if word == "roles" and isinstance(value, dict):
        return draft.note(part, "the usual roles are read: user and human, assistant and gpt, system")
    if word in ("field_human", "field_model", "message_field_role", "message_field_content"):
        return draft.note(part, "role and content, or from and value, are read")
    if value in (None, False, "", []):
        return None
    return draft.change(part, "left out: data.train has no field for it")
