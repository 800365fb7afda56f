"""A cache of verdicts, so that a job of the same shapes compiles nothing again.

It lies beside the runs (`<output.uri>/.preflight/<key>.json`), like the compilation cache: whoever may write there runs
jobs there anyway, and whoever submits the job again finds it. The key is a hash of everything that a verdict depends
on: model, algorithm, training, rollout, chips, compile depth, flags, versions, and the trainer's own code. Once one of
these changes, most verdicts are never read again, so the oldest are deleted.
"""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ptapi.accelerators import compiler_flags
from ptapi.run_directory import VERDICTS
from ptapi.spec import PostTrainJobSpec
from ptapi.status import PreflightStatus
from pttrainer.errors import TrainerError
from pttrainer.models import ModelConfig
from pttrainer.runtime.io import json_text, storage
from pttrainer.runtime.io.place import Place

_PARTS = {"algorithm", "training", "rollout", "evaluation", "accelerator"}
Document = dict[str, Any]
MOST, KEPT = 250, 200
"""Cached verdicts: from MOST on, the newest KEPT stay. Their age is in the files, so all are read then."""


def key(spec: PostTrainJobSpec, config: ModelConfig, depth: str, versions: dict[str, str]) -> str:
    """Return the same key for jobs with the same verdict, whatever their name and data."""
    settings = spec.model_dump(mode="json", include=_PARTS)
    inputs = {"spec": settings, "model": repr(config), "depth": depth, "versions": versions, "code": _code()}
    inputs["flags"] = compiler_flags.of_job(spec)  # posttrain's own are in a table outside the trainer's code
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]


def load(output_uri: str, key: str) -> tuple[PreflightStatus, Document] | None:
    """Return the summary and the full verdict of an earlier job; None if there is none, or it is unreadable."""
    try:
        content = storage.place(_uri(output_uri)).read(f"{key}.json")
        document = None if content is None else json_text.loads(content)
        return None if document is None else (PreflightStatus.model_validate(document["brief"]), document["verdict"])
    except (TrainerError, OSError, ValueError, KeyError, TypeError):
        return None


def store(output_uri: str, key: str, summary: PreflightStatus, verdict: Document) -> None:
    """Store a verdict; raise StorageError or ConfigError if it cannot be written."""
    written = datetime.now(UTC).isoformat()
    document = {"brief": summary.model_dump(mode="json", by_alias=True), "verdict": verdict, "written": written}
    place = storage.place(_uri(output_uri))
    place.write(f"{key}.json", json.dumps(document).encode())
    names = [name for name in place.names() if name.endswith(".json")]
    if len(names) > MOST:
        for name in sorted(names, key=lambda name: _written(place, name))[:-KEPT]:
            place.remove(name)


def _written(place: Place, name: str) -> str:
    """Return when a verdict was written; an unreadable one is the oldest."""
    try:
        return str(json_text.loads(place.read(name) or b"{}").get("written", ""))
    except (ValueError, AttributeError):
        return ""


def _uri(output_uri: str) -> str:
    return f"{output_uri.rstrip('/')}/{VERDICTS}"


def _code() -> str:
    """Return a hash of this trainer's code: between two releases its version does not change."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
