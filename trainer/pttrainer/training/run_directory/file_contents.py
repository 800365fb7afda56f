"""The content of the files that a job names, as the lineage keeps it and a resumed run compares it.

Rows, templates and Python files are hashed whole, Python files together with the sibling modules that they import.
Large weights on a disk are sampled (`file_digests`); in a bucket they have the service's CRC32C. Hugging Face
repositories are left out: the run keeps the commit that it began with. Files that cannot be read have no entry; whoever
needs them reports why.
"""

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
    """A file, its size, and a digest of its content: `sha256:…`, `sampled:…`, `crc32c:…`."""

    uri: str
    bytes: int
    digest: str

    def __str__(self) -> str:
        kind, _, value = self.digest.partition(":")
        return f"{self.bytes:,} bytes ({kind} {value[:12]})"


Contents = Mapping[str, list[File]]
"""Files by the field that names them; data by part: `spec.data.train`."""


def of_job(job: PostTrainJob) -> Contents:
    """Return the content of the job's own files, without its data."""
    contents = {field: _read(field, uri) for field, uri in _named_files(job)}
    return {field: listed for field, listed in contents.items() if listed}


def of_data(source: DataSource, field: str) -> list[File]:
    """Return the files of a data source, in reading order. Raises DataError."""
    return _of_facts(files.facts(source, field))


def recorded(lineage: Mapping[str, Any]) -> Contents:
    """Return the contents that an earlier attempt recorded."""
    data = {f"spec.data.{part}": _of_facts(facts) for part, facts in lineage.get("data", {}).items()}
    return data | {field: [File(**file) for file in listed] for field, listed in lineage.get("files", {}).items()}


def facts(contents: Contents) -> dict[str, Any]:
    """Return the contents as the lineage keeps them."""
    return {field: [file._asdict() for file in listed] for field, listed in contents.items()}


def _of_facts(facts: Mapping[str, Any]) -> list[File]:
    return [File(file["uri"], file["bytes"], f"sha256:{file['sha256']}") for file in facts["files"]]


def _named_files(job: PostTrainJob) -> Iterator[tuple[str, str]]:
    """Yield the fields that name files which affect the result, and the files' URIs."""
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
        fields[f"spec.rewards[{index}].model.uri"] = None if reward.model is None else reward.model.uri
    for index, tool in enumerate([] if spec.environment is None else spec.environment.tools):
        fields[f"spec.environment.tools[{index}].python.uri"] = None if tool.python is None else tool.python.uri
    for field, uri in fields.items():
        if uri is not None and not uri.startswith((HUB, "random://")):
            yield field, uri


TOKENIZER, ADAPTERS = "spec.model.tokenizer", "spec.training.lora.from"
PATTERNS: dict[str, tuple[str, ...]] = {TOKENIZER: model_files.FILES, ADAPTERS: model_files.ADAPTERS}
"""The relevant files of directories that hold no model."""


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
    listed = [file for file in sorted(Path(path).iterdir()) if file.is_file() and _counts(field, file.name)]
    return [File(f"file://{file}", file.stat().st_size, file_digests.weights(file)) for file in listed]


def _sha256(path: Path) -> str:
    return f"sha256:{file_digests.sha256(path)}"


def _in_bucket(field: str, uri: str) -> Iterator[File]:
    """Yield one object, or the relevant ones of a directory. A Python file in a bucket is fetched alone."""
    head, _, last = uri.rstrip("/").rpartition("/")
    blob = storage.bucket(head).blob(last) if head != "gs:/" else None
    if blob is not None:
        yield File(uri, blob.size, f"crc32c:{blob.crc32c}")
        return
    for name, blob_entry in sorted(storage.bucket(uri).blobs().items()):
        if "/" not in name and _counts(field, name):
            yield File(f"{uri.rstrip('/')}/{name}", blob_entry.size, f"crc32c:{blob_entry.crc32c}")


def _counts(field: str, name: str) -> bool:
    """Return True if the trainer reads the file of this directory."""
    if field in PATTERNS:
        return any(fnmatchcase(name, pattern) for pattern in PATTERNS[field])
    patterns = (*model_files.FILES, *model_files.WEIGHTS)
    return any(fnmatchcase(name, pattern) for pattern in patterns) and not any(
        fnmatchcase(name, pattern) for pattern in model_files.NOT_OURS
    )


def _modules(path: Path) -> list[Path]:
    """Return a Python file and the sibling modules that it imports, transitively; a package counts whole."""
    paths: list[Path] = []
    queue = [path] if path.is_file() else []
    while queue:
        file = queue.pop(0)
        paths.append(file)
        for name in _imported(file):
            package = sorted((path.parent / name).rglob("*.py"))
            siblings = [module for module in (path.parent / f"{name}.py", *package) if module.is_file()]
            queue += [module for module in siblings if module not in (*paths, *queue)]
    return [*paths[:1], *sorted(paths[1:])]


def _imported(file: Path) -> list[str]:
    """Return the names of the top-level modules that a file imports; none if it is not valid Python."""
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
