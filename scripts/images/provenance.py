"""Where an image comes from: an in-toto statement with SLSA's provenance, version 1. Pure.

Its subject is the image's configuration, which names every layer and is the same in every registry: what a manifest
calls `config.digest`, and the tools the image's ID. The manifest's own digest exists only after a push. Not signed:
whoever pushes signs.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

SOURCE = "https://github.com/posttrain/posttrain"
PROJECT = "posttrain"
BUILD_TYPE = f"{SOURCE}/blob/main/Dockerfile"
_REQUIREMENT = re.compile(r"(?P<name>\S+?)==(?P<version>\S+) --hash=sha256:(?P<digest>[0-9a-f]{64})")

Document = dict[str, Any]


@dataclass(frozen=True)
class Build:
    """A build that is done. tool: its name and version. revision: as of `git describe`, empty where git cannot say.
    base_digest: of the base image's manifest, or of its configuration where only the tool has it.

    installed: lines `name==version --hash=…` of the image. files: of the checkout that say what is built, and of the
    records beside the image, by name, with their digests.
    """

    image: str
    digest: str
    target: str
    accelerator: str
    tool: tuple[str, str]
    revision: str
    base_name: str
    base_digest: str
    installed: tuple[str, ...]
    inputs: dict[str, str]
    records: dict[str, str]
    started: datetime
    finished: datetime


def provenance(build: Build) -> Document:
    """Return the statement about an image."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": build.image, "digest": _digest(build.digest)}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": _parameters(build),
                "resolvedDependencies": _materials(build),
            },
            "runDetails": {
                "builder": {"id": f"{SOURCE}/blob/main/scripts/images/build.py", "version": dict([build.tool])},
                "metadata": {"startedOn": _time(build.started), "finishedOn": _time(build.finished)},
                "byproducts": [{"name": name, "digest": _digest(each)} for name, each in build.records.items()],
            },
        },
    }


def _parameters(build: Build) -> Document:
    """Return what whoever built it chose. A checkout with changes of its own says so in its revision."""
    accelerator = {"accelerator": build.accelerator} if build.target == "trainer" else {}
    return {"source": f"git+{SOURCE}@{build.revision or 'unknown'}", "target": build.target, **accelerator}


def _materials(build: Build) -> list[Document]:
    return [
        *_source(build.revision),
        {"uri": f"pkg:docker/{build.base_name.partition('@')[0]}", "digest": _digest(build.base_digest)},
        *({"uri": f"{SOURCE}/{name}", "digest": _digest(each)} for name, each in build.inputs.items()),
        *map(_package, build.installed),
    ]


def _source(revision: str) -> list[Document]:
    commit = revision.removesuffix("-dirty")
    if not commit:
        return []
    changed = {"annotations": {"uncommittedChanges": True}} if commit != revision else {}
    return [{"uri": f"git+{SOURCE}", "digest": {"gitCommit": commit}, **changed}]


def _package(requirement: str) -> Document:
    """Return a Python package as it was installed. Raises ValueError for a line without version and hash."""
    match = _REQUIREMENT.fullmatch(requirement)
    if match is None:
        raise ValueError(f"installed.txt: {requirement}: expected NAME==VERSION --hash=sha256:…")
    name, digest = re.sub(r"[-_.]+", "-", match["name"]).lower(), {"sha256": match["digest"]}
    if name == PROJECT:  # its wheel is made on the way, from the source above
        return {"name": f"{name}-{match['version']}.whl", "digest": digest}
    return {"uri": f"pkg:pypi/{name}@{match['version']}", "digest": digest}


def _digest(text: str) -> dict[str, str]:
    algorithm, _, value = text.partition(":")
    return {algorithm: value}


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
