"""What made manifests are held against: golden files, and public CRDs where those lie beside the repository."""

import copy
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptkube.resources import Manifest
from ptlocal.apiserver.schema import defaulting, pruning, validation
from ptlocal.apiserver.schema.cel import RuleWalk

CRDS = Path(__file__).resolve().parents[4] / "shared" / "data" / "crds"
with_public_crds = pytest.mark.skipif(not CRDS.exists(), reason="the public CRDs are not beside the repository")


def assert_golden(path: Path, text: str) -> None:
    """A file's text, which UPDATE_GOLDEN writes anew."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path.name} differs; hint: `make golden`, then read the diff"


def refusals(made: Manifest, crd: str, version: str) -> list[str]:
    """What a server with the public CRD refuses in an object: unknown fields, its schema, its CEL rules."""
    schema, sent = _schema(crd, version), copy.deepcopy(made)
    unknown = pruning.prune_object(sent, schema)
    defaulting.apply_defaults(sent, schema)
    wrong = validation.errors(sent, schema) or RuleWalk(schema).errors(sent)
    return [*unknown, *map(str, wrong)]


@cache
def _schema(crd: str, version: str) -> Any:
    """Parsed once: the files are large, and the C loader is ten times faster."""
    definition = yaml.load((CRDS / f"{crd}.yaml").read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    served = next(each for each in definition["spec"]["versions"] if each["name"] == version)
    return served["schema"]["openAPIV3Schema"]


def differences(ours: Any, theirs: Any, path: str = "") -> set[str]:
    """Paths at which two manifests differ; a list of named things is compared by position."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = ours.keys() | theirs.keys()
        return {
            difference
            for key in keys
            for difference in differences(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)
        }
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return {difference for i, (one, other) in pairs for difference in differences(one, other, f"{path}[{i}]")}
    return set() if ours == theirs else {path}


def covers(intended: str, path: str) -> bool:
    """Whether a difference is one of these or below it; `[*]` stands for both jobs of a pair."""
    candidates = [intended.replace("[*]", f"[{index}]") for index in range(2)]
    return any(path == each or path.startswith((f"{each}.", f"{each}[")) for each in candidates)
