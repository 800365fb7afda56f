"""Data that most runs here train on."""

from pathlib import Path

import pytest
from tests.builders.trainer import runs


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("home")
    runs.write_rows(directory / "train.jsonl", runs.SUMS)
    runs.write_rows(directory / "eval.jsonl", runs.SUMS[::9])
    return directory
