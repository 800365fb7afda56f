"""Wrong files that the trainer reads: rows of data, a model's directory, what a run directory holds."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.unit.wrong_inputs import tables

from ptapi.spec import DataSource
from pttrainer.data import rows
from pttrainer.data.tokenization import tokenizer
from pttrainer.errors import TrainerError
from pttrainer.models.families import READERS
from pttrainer.models.loading import model_spec
from pttrainer.models.weights.hf_directory import Checkpoint
from pttrainer.runtime.io import storage
from pttrainer.training.run_directory import run_files

CONFIG: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 264, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "eos_token_id": 257,
}  # fmt: skip
TENSOR = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_golden_wrong_row_is_refused_with_file_line_and_column(here: Path) -> None:
    tables.check("data_rows", lambda given: _answer(here, given, lambda: _rows(here, given)))


def test_golden_wrong_model_is_refused_with_file_and_key(here: Path) -> None:
    tables.check("models", lambda given: _answer(here, given, lambda: _model(here, given)))


def test_golden_wrong_run_directory_is_refused_with_its_file(here: Path) -> None:
    tables.check("run_directories", lambda given: _answer(here, given, lambda: _run(here)))


def _answer(here: Path, given: dict[str, Any], read: Any) -> str:
    file = here / given["file"]
    file.write_bytes(_content(given))
    try:
        read()
    except TrainerError as error:
        return str(error).replace(str(here), "").replace(", ".join(sorted(READERS)), "FAMILIES")
    finally:
        file.unlink()
    return tables.ACCEPTED


def _content(given: dict[str, Any]) -> bytes:
    """`bytes`: one a character; `rows`: JSON Lines; `repeat`: before, what is repeated, how often, after."""
    if "rows" in given:
        return "\n".join(json.dumps(row) for row in given["rows"]).encode()
    if "repeat" in given:
        before, part, times, after = given["repeat"]
        return (before + part * times + after).encode()
    if "config" in given:
        return json.dumps(CONFIG | given["config"]).encode()
    if "tensor" in given:
        header = json.dumps({"w": TENSOR | given["tensor"]}).encode()
        return struct.pack("<Q", len(header)) + header + bytes(given.get("size", 16))
    if "header" in given:
        header = given["header"].encode("latin-1")
        return struct.pack("<Q", given.get("length", len(header))) + header + bytes(16)
    return bytes(given["bytes"], "latin-1")


def _rows(here: Path, given: dict[str, Any]) -> None:
    source = {"uri": f"file://{here}/{given['file']}", **given.get("source", {})}
    rows.load(DataSource.model_validate(source, by_alias=True, by_name=False), "spec.data.train")


def _model(here: Path, given: dict[str, Any]) -> None:
    uri = f"file://{here}"
    if given["file"] == "config.json":
        config = model_spec.open_source(uri, "spec.model.uri", lambda line: None).config
        assert math.prod((config.d_model, config.layers, config.heads)) > 0
    elif given["file"].startswith("adapter_config"):
        from pttrainer.models.loading import peft_adapters  # it imports jax, and every worker all files

        peft_adapters._read_config(here, uri)
    elif given["file"].endswith((".safetensors", ".index.json")):
        checkpoint = Checkpoint(here, uri)
        for name in checkpoint.names():
            checkpoint.rows(name, 0, 1)
    else:
        tokenizer.load(storage.place(uri))


def _run(here: Path) -> None:
    run_files.read_lineage(storage.place(f"file://{here}"))
