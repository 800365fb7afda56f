"""Rules about the words in names."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("api", "kube", "operator", "trainer", "cli", "python", "benchmarks", "scripts", "examples", "tests")
VAGUE = {"seen", "found", "said", "told", "asked"}
"""They tell where a value comes from; a name tells what it is. `NotFound` is Kubernetes' own word."""
IDENTIFIER = re.compile(r"[^\W\d]\w*")
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(asname=str(name)) | ast.keyword(arg=str(name)):
            yield name


@cache
def is_vague(name: str) -> bool:
    words = [word.lower() for word in WORD.findall(name)]
    if words[:1] == ["test"]:  # a sentence
        return False
    return not VAGUE.isdisjoint(words) and ("not", "found") not in pairwise(words)


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [
        ("found", True),
        ("_seen_ids", True),
        ("wasTold", True),
        ("ASKED", True),
        ("NotFound", False),
        ("NOT_FOUND", False),
        ("foundation", False),
        ("test_what_is_found", False),
    ],
)
def test_a_name_is_vague_if_one_of_its_words_is(name: str, is_refused: bool) -> None:
    assert is_vague(name) is is_refused


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_name_tells_what_a_thing_is(folder: str) -> None:
    texts = {path: path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}
    suspects = {path: text for path, text in texts.items() if any(map(is_vague, IDENTIFIER.findall(text)))}
    vague = {
        (str(path), name)
        for path, text in suspects.items()
        for node in ast.walk(ast.parse(text))
        for name in names(node)
        if is_vague(name)
    }
    assert not vague, "say what the thing is"
