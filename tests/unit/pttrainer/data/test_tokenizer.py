"""Tokenizers: bytes, a checkpoint's own, and what a checkpoint may lack."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pttrainer.data.tokenization import tokenizer
from pttrainer.errors import ConfigError
from pttrainer.runtime.io.directory import Directory

BYTES = tokenizer.byte_tokenizer()


@given(st.text())
def test_bytes_come_back_as_the_text_they_were(text: str) -> None:
    ids = BYTES.encode(text)
    if not any(special in text for special in tokenizer.BYTE_SPECIALS):
        assert ids == list(text.encode())
        assert BYTES.decode(ids) == text


def test_special_tokens_have_the_ids_above_the_bytes() -> None:
    assert BYTES.encode("".join(tokenizer.BYTE_SPECIALS)) == list(range(256, 264))
    assert BYTES.size == 264
    assert (BYTES.bos_id, BYTES.eos_ids, BYTES.pad_id) == (256, (257,), 258)
    assert BYTES.decode([256, 97, 257]) == "a"


def directory(tmp_path: Path, **files: object) -> Directory:
    (tmp_path / "tokenizer.json").write_bytes(BYTES.files["tokenizer.json"])
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return Directory(tmp_path)


def test_an_exported_byte_tokenizer_is_read_back_the_same(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    for name, content in BYTES.files.items():
        place.write(name, content)
    again = tokenizer.load(place)
    assert again.encode("hé<|end|>") == BYTES.encode("hé<|end|>")
    assert (again.bos_id, again.eos_ids, again.pad_id) == (BYTES.bos_id, BYTES.eos_ids, BYTES.pad_id)
    assert again.template == BYTES.template


def test_end_tokens_of_all_files_count(tmp_path: Path) -> None:
    place = directory(
        tmp_path, tokenizer_config={"eos_token": "<|end|>"}, generation_config={"eos_token_id": [262, 257]}
    )
    assert tokenizer.load(place, model_eos_ids=(263,)).eos_ids == (257, 262, 263)


def test_a_special_token_may_be_written_as_an_object(tmp_path: Path) -> None:
    place = directory(tmp_path, tokenizer_config={"eos_token": {"content": "<|end|>"}, "bos_token": None})
    assert tokenizer.load(place).eos_ids == (257,)
    assert tokenizer.load(place).bos_id is None


def test_a_template_in_its_own_file_wins(tmp_path: Path) -> None:
    place = directory(tmp_path, tokenizer_config={"eos_token": "<|end|>", "chat_template": "old"})
    assert tokenizer.load(place).template == "old"
    (tmp_path / "chat_template.jinja").write_text("new")
    assert tokenizer.load(place).template == "new"


def test_of_named_templates_the_default_is_taken(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    place = directory(tmp_path, tokenizer_config={"eos_token": "<|end|>", "chat_template": templates})
    assert tokenizer.load(place).template == "b"


def test_a_model_without_tokenizer_or_end_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json; hint: name another location in spec\.model\.tokenizer"):
        tokenizer.load(Directory(tmp_path))
    with pytest.raises(ConfigError, match="no end token"):
        tokenizer.load(directory(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"{", r"tokenizer\.json: cannot be read"),
        ("tokenizer_config.json", b"{", r"tokenizer_config\.json: is not valid JSON"),
        ("tokenizer_config.json", b"[]", r"tokenizer_config\.json: is a list; accepted: a JSON object"),
    ],
)
def test_tokenizer_files_that_are_broken_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    place = directory(tmp_path, tokenizer_config={"eos_token": "<|end|>"})
    place.write(name, content)
    with pytest.raises(ConfigError, match=message):
        tokenizer.load(place)
