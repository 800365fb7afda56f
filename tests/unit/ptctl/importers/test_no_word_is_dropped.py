"""No word of TRL or Axolotl is dropped: whatever it says, another value makes another job, comment or refusal."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.imported_words import other, outcome
from tests.unit.ptctl.importers.test_import import ALL

from ptctl.importers.command_lines.shell import parse
from ptctl.importers.draft_text import document
from ptctl.importers.huggingface import axolotl, trl
from ptctl.importers.huggingface.launch import Launch, launch_of, settings
from ptctl.importers.huggingface.trl_defaults import DEFAULTS

_SAME = {"config", "num_machines", "field_messages", "type"}
"""Files are words of their own; one machine more has no other GPUs."""


def axolotl_documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for file, name, source, expected in ALL:
        if file.stem == "axolotl" and "\nspec:" in expected and "base_model" in source:
            yield name, yaml.safe_load(source)


def leaves(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values of a document."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from leaves(value, (*path, key)) if isinstance(value, (dict, list)) else [(*path, key)]


@pytest.mark.parametrize("values", [values for _, values in axolotl_documents()])
def test_each_word_of_axolotl_has_an_effect_that_the_user_sees(values: dict[str, Any]) -> None:
    before = outcome(lambda: axolotl.draft_of(copy.deepcopy(values), "x", None, {}))
    for path in leaves(values):
        changed = copy.deepcopy(values)
        node = changed
        for key in path[:-1]:
            node = node[key]
        if node[path[-1]] is None or path[-1] in _SAME:
            continue
        node[path[-1]] = other(node[path[-1]])
        assert outcome(lambda changed=changed: axolotl.draft_of(changed, "x", None, {})) != before, path


def trl_launches() -> Iterator[tuple[Launch, dict[str, Any]]]:
    for file, _, source, expected in ALL:
        if file.stem == "trl" and "\nspec:" in expected:
            for command in parse(source, {}).commands:
                if (launch := launch_of(command)) and launch.trainer in DEFAULTS:
                    yield launch, settings(launch.words, "x")[1]


@pytest.mark.parametrize(("launch", "values"), list(trl_launches()))
def test_each_word_of_trl_has_an_effect_that_the_user_sees(launch: Launch, values: dict[str, Any]) -> None:
    before = outcome(lambda: trl.draft_of(launch, dict(values), 8, {}))
    for name in values:
        if name not in (*_SAME, "num_processes", "accelerate_config"):  # trainers.py takes them
            changed = {**values, name: other(values[name])}
            assert outcome(lambda changed=changed: trl.draft_of(launch, changed, 8, {})) != before, name


def test_a_file_beside_the_script_is_read_as_if_its_words_were_typed(tmp_path: Path) -> None:
    from ptctl.importers.source import drafts

    (tmp_path / "c.yaml").write_text("learning_rate: 3e-5\nbeta: 0.3\n")
    script = str(tmp_path / "run.sh")
    start = "trl dpo --model_name_or_path a/b --dataset_name c/d --num_processes 1"
    (from_file,) = drafts(f"{start} --config c.yaml --beta 0.4\n", script, {})
    (typed,) = drafts(f"{start} --learning_rate 3e-5 --beta 0.4\n", script, {})
    assert document(from_file) == document(typed)


ODD: list[Any] = [[], "x", True, {"a": 1}, [None], "nan"]


@pytest.mark.parametrize("name", ["GRPO", "files on the machine"])
def test_a_value_of_an_odd_form_is_imported_or_refused_and_never_a_bug(name: str) -> None:
    (values,) = [values for case, values in axolotl_documents() if case == name]
    for path in [*leaves(values), *((key,) for key in values)]:
        for odd in ODD:
            changed = copy.deepcopy(values)
            node = changed
            for key in path[:-1]:
                node = node[key]
            node[path[-1]] = odd
            outcome(lambda changed=changed: axolotl.draft_of(changed, "x", None, {}))
