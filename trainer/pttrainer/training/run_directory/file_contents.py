"""What the files hold that a job names, as the lineage keeps it and a resumed run compares it.

Rows, templates and Python files are hashed whole, Python files with the modules beside them that they import. Weights
on a disk are sampled where they are large (`checksums`), in a bucket they have the service's CRC32C. Hugging Face's
repositories are left out: the run keeps the commit that it began with. Nothing is known of what cannot be read here;
whoever needs it says why.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from ptapi.spec import DataSource, PostTrainJob
from pttrainer.data.sources import files
from pttrainer.runtime.io import file_digests, model_files, storage
from pttrainer.runtime.io.huggingface import HUB


class File(NamedTuple):
    """A file, what it takes, and a digest of what it holds: `sha256:…`, `sampled:…`, `crc32c:…`."""

    uri: str
    bytes: int
    digest: str

    def __str__(self) -> str:
        kind, _, value = self.digest.partition(":")
        return f"{self.bytes:,} bytes ({kind} {value[:12]})"


Contents = Mapping[str, list[File]]
"""By the field that names the files; of data, by the part's name: `spec.data.train`."""


def of_job(job: PostTrainJob) -> Contents:
    """What the job's own files hold, beside its data."""
    found = {field: _read(field, uri) for field, uri in _named(job)}
    return {field: there for field, there in found.items() if there}


def of_data(source: DataSource, field: str) -> list[File]:
    """The files of a data source, in the order in which they are read; raises DataError."""
    return _of_facts(files.facts(source, field))


def known(lineage: Mapping[str, Any]) -> Contents:
    """What an earlier attempt wrote down."""
    data = {f"spec.data.{part}": _of_facts(facts) for part, facts in lineage.get("data", {}).items()}
    return data | {field: [File(**file) for file in there] for field, there in lineage.get("files", {}).items()}


def facts(contents: Contents) -> dict[str, Any]:
    """As the lineage keeps them."""
    return {field: [file._asdict() for file in there] for field, there in contents.items()}


def _of_facts(facts: Mapping[str, Any]) -> list[File]:
    return [File(file["uri"], file["bytes"], f"sha256:{file['sha256']}") for file in facts["files"]]


def _named(job: PostTrainJob) -> Iterator[tuple[str, str]]:
    """Fields that name files which shape the result, and what they name."""
    spec = job.spec
    teacher = None if spec.algorithm.distill is None else spec.algorithm.distill.teacher
    critic = None if spec.algorithm.ppo is None else spec.algorithm.ppo.critic
    world = None if spec.environment is None else spec.environment.python
    fields = {
        "spec.model.uri": spec.model.uri,
        TOKENIZER: spec.model.tokenizer,
        "spec.model.chatTemplate": spec.model.chat_template,
        "spec.algorithm.distill.teacher.uri": None if teacher is None else teacher.uri,
        "spec.algorithm.ppo.critic.uri": None if critic is None else critic.uri,
        ADAPTERS: None if spec.training.lora is None else spec.training.lora.origin,
        "spec.environment.python.uri": None if world is None else world.uri,
    }
    for index, reward in enumerate(spec.rewards):
        fields[f"spec.rewards[{index}].python.uri"] = None if reward.python is None else reward.python.uri
    for index, tool in enumerate([] if spec.environment is None else spec.environment.tools):
        fields[f"spec.environment.tools[{index}].python.uri"] = None if tool.python is None else tool.python.uri
    for field, uri in fields.items():
        if uri is not None and not uri.startswith((HUB, "random://")):
            yield field, uri


TOKENIZER, ADAPTERS = "spec.model.tokenizer", "spec.training.lora.from"
PATTERNS: dict[str, tuple[str, ...]] = {TOKENIZER: model_files.FILES, ADAPTERS: model_files.ADAPTERS}
"""Which files of a directory count, where it is not a model's."""


def _read(field: str, uri: str) -> list[File]:
    scheme, path = storage.split(uri)
    try:
        return list(_in_bucket(field, uri)) if scheme == "gs" else _on_disk(field, uri, path)
    except OSError:
        return []


def _on_disk(field: str, uri: str, path: str) -> list[File]:
    if path.endswith(".py"):
        return [File(f"file://{file}", file.stat().st_size, _sha256(file)) for file in _modules(Path(path))]
    if Path(path).is_file():
        return [File(uri, Path(path).stat().st_size, _sha256(Path(path)))]
    if not Path(path).is_dir():
        return []
    there = [file for file in sorted(Path(path).iterdir()) if file.is_file() and _counts(field, file.name)]
    return [File(f"file://{file}", file.stat().st_size, file_digests.weights(file)) for file in there]


def _sha256(path: Path) -> str:
    return f"sha256:{file_digests.sha256(path)}"


def _in_bucket(field: str, uri: str) -> Iterator[File]:
    """One object, or those of a directory that count. A Python file of a bucket is fetched alone."""
    head, _, last = uri.rstrip("/").rpartition("/")
    blob = storage.bucket(head).blob(last) if head != "gs:/" else None
    if blob is not None:
        yield File(uri, blob.size, f"crc32c:{blob.crc32c}")
        return
    for name, found in sorted(storage.bucket(uri).blobs().items()):
        if "/" not in name and _counts(field, name):
            yield File(f"{uri.rstrip('/')}/{name}", found.size, f"crc32c:{found.crc32c}")


def _counts(field: str, name: str) -> bool:
    """Whether the trainer reads the file of this directory."""
    if field in PATTERNS:
        return any(fnmatchcase(name, pattern) for pattern in PATTERNS[field])
    patterns = (*model_files.FILES, *model_files.WEIGHTS)
    return any(fnmatchcase(name, pattern) for pattern in patterns) and not any(
        fnmatchcase(name, pattern) for pattern in model_files.NOT_OURS
    )


def _modules(path: Path) -> list[Path]:
    """The Python file and those beside it that it imports, and they import; a package counts whole."""
    found: list[Path] = []
    coming = [path] if path.is_file() else []
    while coming:
        file = coming.pop(0)
        found.append(file)
        for name in _imported(file):
            package = sorted((path.parent / name).rglob("*.py"))
            beside = [module for module in (path.parent / f"{name}.py", *package) if module.is_file()]
            coming += [module for module in beside if module not in (*found, *coming)]
    return [*found[:1], *sorted(found[1:])]


def _imported(file: Path) -> list[str]:
    """Names of modules, without what follows a dot; none where the file is not Python, which others say."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return []
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return list(dict.fromkeys(name.partition(".")[0] for name in names))
