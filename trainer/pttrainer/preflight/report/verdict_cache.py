"""Verdicts of before, so that a job of the same shapes compiles nothing again.

They lie beside the runs (`<output.uri>/.preflight/<key>.json`), as the compilation cache does: who may write there runs
jobs there anyway, and whoever submits the job again finds them. The key is a hash of everything that a verdict follows
from: model, algorithm, training, rollout, chips, how deep to compile, versions, and the trainer's own code. Once one of
these changes, most verdicts are never asked for again, so the oldest go.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ptapi.run_directory import VERDICTS
from ptapi.spec import PostTrainJobSpec
from ptapi.status import PreflightStatus
from pttrainer.errors import TrainerError
from pttrainer.models import ModelConfig
from pttrainer.runtime.io import storage

_PARTS = {"algorithm", "training", "rollout", "evaluation", "accelerator"}
Document = dict[str, Any]
MOST, KEPT = 250, 200
"""Verdicts that are kept: from MOST on, the newest KEPT. Their age stands in them, so that all are read then."""


def key(spec: PostTrainJobSpec, config: ModelConfig, depth: str, versions: dict[str, str]) -> str:
    """The same for jobs with the same verdict, whatever they are called and train on."""
    asked = spec.model_dump(mode="json", include=_PARTS)
    known = {"spec": asked, "model": repr(config), "depth": depth, "versions": versions, "code": _code()}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]


def recall(output_uri: str, key: str) -> tuple[PreflightStatus, Document] | None:
    """The brief and the whole verdict of before; None where there is none, or none that can be read."""
    try:
        content = storage.place(_uri(output_uri)).read(f"{key}.json")
        found = None if content is None else json.loads(content)
        return None if found is None else (PreflightStatus.model_validate(found["brief"]), found["verdict"])
    except (TrainerError, OSError, ValueError, KeyError):
        return None


def remember(output_uri: str, key: str, brief: PreflightStatus, verdict: Document) -> None:
    """Raises StorageError, or ConfigError, where it cannot be written."""
    written = datetime.now(UTC).isoformat()
    document = {"brief": brief.model_dump(mode="json", by_alias=True), "verdict": verdict, "written": written}
    place = storage.place(_uri(output_uri))
    place.write(f"{key}.json", json.dumps(document).encode())
    names = [name for name in place.names() if name.endswith(".json")]
    if len(names) > MOST:
        for name in sorted(names, key=lambda name: _written(place, name))[:-KEPT]:
            place.remove(name)


def _written(place: storage.Place, name: str) -> str:
    """When; one that cannot be read is older than all."""
    try:
        return str(json.loads(place.read(name) or b"{}").get("written", ""))
    except ValueError:
        return ""


def _uri(output_uri: str) -> str:
    return f"{output_uri.rstrip('/')}/{VERDICTS}"


def _code() -> str:
    """Of this very trainer: between two releases its version says nothing."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
