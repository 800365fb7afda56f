"""The reference page of TRL's settings of GRPO against the TRL that is installed: every field, with its default."""

import dataclasses
import re
from pathlib import Path

import transformers
import trl

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "trl-grpo.md"


def test_every_setting_of_trl_s_grpo_has_its_word_here() -> None:
    others = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    theirs = {
        field.name: str(field.default) for field in dataclasses.fields(trl.GRPOConfig) if field.name not in others
    }
    listed = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert {name: default for name, default, _ in listed} == theirs
    assert len(listed) == len(theirs)
