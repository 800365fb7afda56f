"""The list of experimental fields names what exists, once, and the jobs that newcomers run first do without it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.scripts import load_script

from ptapi import stability
from ptapi.spec import PostTrainJobSpec
from ptapi.spec.openapi_schema import Schema, structural

ROOT = Path(__file__).parents[3]


def fields(schema: Schema, above: str = "") -> Iterator[tuple[str, Schema]]:
    """Every field by its name, maps included."""
    for name, field in schema.get("properties", {}).items():
        yield f"{above}{name}", field
        yield from fields(field, f"{above}{name}.")
        yield from fields(field.get("items", {}), f"{above}{name}[].")


ALL = dict(fields(structural(PostTrainJobSpec)))


@pytest.mark.parametrize("listed", stability.names())
def test_what_is_listed_exists(listed: str) -> None:
    name, _, value = listed.partition("=")
    assert name in ALL
    assert not value or value in ALL[name].get("enum", ALL[name].get("items", {}).get("enum", []))


def test_nothing_is_listed_twice_or_below_what_is_listed() -> None:
    names = stability.names()
    assert len(set(names)) == len(names)
    above = [name.partition("=")[0].rpartition(".")[0] if "=" not in name else name.partition("=")[0] for name in names]
    assert [
        (name, map_) for name, map_ in zip(names, above, strict=True) if map_ and stability.is_experimental(map_)
    ] == []


def test_a_listed_map_marks_all_below_it_and_a_value_marks_no_field() -> None:
    assert stability.is_experimental("rewards[].judge.budget.calls")
    assert stability.is_experimental("environment.tools[].python.uri")
    assert not stability.is_experimental("rewards[].weight")
    assert not stability.is_experimental("capacity[].type")
    assert stability.experimental_values("capacity[].type") == ("queuedProvisioning",)


def used(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for entry in value:
            yield from used(entry, f"{name}[]")
    elif isinstance(value, dict):
        for key, below in value.items():
            yield from used(below, f"{name}.{key}".lstrip("."))
    else:
        yield name, value


@pytest.mark.parametrize("path", sorted((ROOT / "manifests" / "demo").glob("*.yaml")), ids=lambda path: path.name)
def test_the_jobs_of_the_demo_use_what_is_stable_alone(path: Path) -> None:
    pairs = list(used(yaml.safe_load(path.read_text())["spec"]))
    assert len(pairs) > 5
    assert [name for name, _ in pairs if stability.is_experimental(name)] == []
    assert [pair for pair in pairs if pair[1] in stability.experimental_values(pair[0])] == []


def test_the_page_marks_every_field() -> None:
    sections = load_script("scripts/make_reference.py").pages()["spec.md"].split("## Rules across fields")[0]
    rows = [line for line in sections.splitlines() if line.startswith("| `")]
    assert len(rows) == len(ALL)
    assert [row for row in rows if row.split(" | ")[3].split("; ")[0] not in ("stable", "experimental")] == []
    marks = {row.split(" | ")[0]: row.split(" | ")[3] for row in rows}
    assert marks["| `judge`"] == "experimental"
    assert marks["| `weight`"] == "stable"
    assert "| stable; `queuedProvisioning`: experimental |" in sections
