"""What may stand for a model on the command line: a directory, or a URI."""

from pathlib import Path

import pytest

from pttrainer.commands.model.loaded_model import uri_of
from pttrainer.errors import ConfigError
from pttrainer.runtime.io import storage


@pytest.mark.parametrize("path", ["hf://a", "hf://a/b/c", "gs://", "file://runs", "random://", "hf://a/b?x=1"])
def test_a_uri_that_is_no_model_is_refused_with_what_is_accepted(path: str) -> None:
    with pytest.raises(ConfigError, match="not a URI of a model; accepted: an export or run directory") as error:
        uri_of(path)
    assert f"model: {path}: " in str(error.value)


def test_a_directory_may_have_any_name(tmp_path: Path) -> None:
    directory = tmp_path / "läufe vom 1. Mai, 100 %"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    assert storage.place(uri_of(str(directory))).read("config.json") == b"{}"
