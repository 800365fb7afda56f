"""`python -m pttrainer stage`: a model of the hub into a bucket, before anybody pays for chips that wait for it.

    access → what the bucket holds → files, several at once, each checked → config.json, which makes the model complete

A record beside the files says which model they are and which objects they became. So a run that was interrupted goes
on, and one that has nothing to do ends at once. While it copies it rewrites the record, so that others see it at work.
Left out: other sources and targets; what the operator adds for a job (`stage_report`).
"""

import argparse
import hashlib
import json
import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from ptapi.text import bucket_names
from pttrainer.commands import note
from pttrainer.commands.exit import exit_code_of
from pttrainer.errors import ConfigError, TrainerError
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io import huggingface, storage
from pttrainer.runtime.io.gcs_bucket import Bucket
from pttrainer.runtime.io.huggingface import HUB
from pttrainer.runtime.io.model_files import FILES, NOT_OURS, WEIGHTS

RECORD = "posttrain-staged"
"""Object that says what the directory holds."""
COMPLETE = "config.json"
"""File that is written last: without it nobody takes the directory for a model."""
AT_ONCE = 4
TOKEN = "set HF_TOKEN to a token that may read it (in a job: spec.model.tokenSecretRef)"
BEAT_S = 30.0
"""A process that copies rewrites the record so often."""


class BusyError(ConfigError):
    """Another process stages a model in this directory."""


class HubFile(NamedTuple):
    """A file of a model. digest: SHA-256 of a large one, else git's name of its content."""

    name: str
    size: int
    digest: str


class HubModel(NamedTuple):
    """A model at a commit, and the files of it that a job reads."""

    uri: str
    commit: str
    files: list[HubFile]


@dataclass
class Record:
    """What a directory holds, as far as it was written: each file's digest and object.

    generation: of the record. writer: this process, so that it knows its own writing.
    """

    model: HubModel
    objects: dict[str, list[str]] = field(default_factory=dict)
    generation: int = 0
    writer: str = field(default_factory=lambda: uuid.uuid4().hex)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def content(self) -> bytes:
        """Return it as JSON."""
        source = {"source": self.model.uri, "commit": self.model.commit}
        document = {**source, "writer": self.writer, "objects": self.objects}
        return json.dumps(document, indent=1).encode()

    def holds(self, file: HubFile, blobs: Mapping[str, Any]) -> bool:
        """Return True if the bucket still has this file as it was written."""
        blob = blobs.get(file.name)
        return blob is not None and self.objects.get(file.name) == [file.digest, str(blob.generation)]

    def write(self, bucket: Bucket) -> None:
        """Replace it; raise BusyError if somebody else has."""
        generation = bucket.write_if(RECORD, self.content, self.generation)
        if generation is None:  # also where the answer to the first try was lost
            content, generation = bucket.read_versioned(RECORD)
            if content != self.content:
                raise BusyError(f"{bucket.uri}: another process stages a model here; accepted: one at a time")
        self.generation = generation

    @contextmanager
    def kept_fresh(self, bucket: Bucket) -> Iterator[None]:
        """Rewrite it now and then, until somebody else does: the next file's entry raises that."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(BEAT_S):
                with self.lock, suppress(TrainerError):
                    self.write(bucket)

        thread = threading.Thread(target=beat, name="stage-record", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def add_to(commands: Any) -> None:
    """Add the verb's options."""
    parser = commands.add_parser("stage", help="copy a model of the hub into a bucket")
    parser.add_argument("source", metavar="hf://ORG/NAME")
    parser.add_argument("target", metavar="gs://BUCKET/DIR")
    parser.add_argument("--revision", help="branch, tag or commit; unset: the default branch")
    parser.add_argument(
        "--report",
        action="store_true",
        help="as the operator does: each commit in a directory of its own under the target, shared with other jobs; "
        "name it in the termination message",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.report:
        from pttrainer.commands.model import stage_report

        return int(stage_report.report(options.source, options.target, options.revision))
    return int(exit_code_of(lambda: stage(options.source, options.target, options.revision)))


def stage(source: str, target: str, revision: str | None = None) -> None:
    """Copy what is missing, and say how far it is. Raises ConfigError or StorageError."""
    check(source, target)
    copy(hub_model(source, revision), target)


def check(source: str, target: str) -> None:
    """Raise ConfigError for a source that is not of the hub, or a target that is in no bucket."""
    for uri, scheme in ((source, HUB), (target, "gs://")):
        if not uri.startswith(scheme) or not uri.removeprefix(scheme).strip("/"):
            raise ConfigError(f"{uri}: accepted: {scheme}… (ptctl model stage hf://ORG/NAME gs://BUCKET/DIR)")
    if wrong := bucket_names.problem(target):
        raise ConfigError(wrong)


def copy(model: HubModel, target: str) -> None:
    """Copy the files that the directory lacks. Raises ConfigError, BusyError or StorageError."""
    bucket = storage.bucket(target)
    record, missing = state_of(bucket, model)
    total, here = (sum(file.size for file in files) for files in (model.files, missing))
    note(f"{model.uri} at {model.commit[:12]}: {len(model.files)} files, {_gigabytes(total)}")
    if not missing:
        note(f"{target}: holds all of them already")
        return
    note(f"{target}: {len(missing)} files to copy, {_gigabytes(here)}")
    record.write(bucket)
    with record.kept_fresh(bucket):
        _copy_all(model, bucket, record, missing)
    note(f"{target}: complete; in a job: model: {{uri: {target}}}")


def state_of(bucket: Bucket, model: HubModel) -> tuple[Record, list[HubFile]]:
    """Return the directory's record and the files that it lacks; raise ConfigError if it holds anything else."""
    blobs = bucket.blobs()
    record = _record(bucket, model, blobs)
    return record, [file for file in model.files if not record.holds(file, blobs)]


def hub_model(source: str, revision: str | None) -> HubModel:
    """Return the model's files; raise ConfigError if it is not there, or this process may not read it."""
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.hf_api import RepoFile

    repository = source.removeprefix(HUB).strip("/")
    with _hub(source if revision is None else f"{source} at {revision}"):
        api = HfApi()
        commit = str(api.model_info(repository, revision=revision).sha)
        get_hf_file_metadata(hf_hub_url(repository, COMPLETE, revision=commit))  # a gated model shows all but content
        tree = list(api.list_repo_tree(repository, revision=commit, recursive=True))
    files = [
        HubFile(entry.path, entry.size, entry.blob_id if entry.lfs is None else entry.lfs.sha256)
        for entry in tree
        if isinstance(entry, RepoFile) and _is_read(entry.path)
    ]
    if not any(file.name.endswith(".safetensors") for file in files):
        raise ConfigError(f"{source}: has no *.safetensors; accepted: a language model in safetensors format")
    return HubModel(f"{HUB}{repository}", commit, files)


@contextmanager
def _hub(where: str) -> Iterator[None]:
    with huggingface.hub_errors(where, "model", ConfigError, TOKEN):
        yield


def _is_read(name: str) -> bool:
    """Return True for a file that a job with this model fetches."""
    return any(fnmatchcase(name, each) for each in (*FILES, *WEIGHTS)) and not any(
        fnmatchcase(name, each) for each in NOT_OURS
    )


def _record(bucket: Bucket, model: HubModel, blobs: Mapping[str, Any]) -> Record:
    """Return the directory's record, or a new one; raise ConfigError if it holds anything else."""
    content, generation = bucket.read_versioned(RECORD)
    if content is None:
        if blobs:
            raise ConfigError(
                f"{bucket.uri}: holds {len(blobs)} objects that were not staged, such as {min(blobs)}; accepted: a "
                "directory of its own for each model"
            )
        return Record(model)
    document = json.loads(content)
    if (document["source"], document["commit"]) != (model.uri, model.commit):
        raise ConfigError(
            f"{bucket.uri}: holds {document['source']} at {document['commit'][:12]}, and {model.uri} is at "
            f"{model.commit[:12]}; accepted: a directory of its own for each commit; hint: name another one, or "
            f"--revision {document['commit']}"
        )
    return Record(model, document["objects"], generation)


def _copy_all(model: HubModel, bucket: Bucket, record: Record, missing: list[HubFile]) -> None:
    """Copy files, several at once, and the one that completes the model at the end."""
    done, total = 0, sum(file.size for file in missing)
    last = [file for file in missing if file.name == COMPLETE]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for files in ([file for file in missing if file.name != COMPLETE], last):
            for file in threads.map(lambda file: _copy(model, bucket, record, file), files):
                done += file.size
                note(f"staged {file.name}: {_gigabytes(done)} of {_gigabytes(total)}")


def _copy(model: HubModel, bucket: Bucket, record: Record, file: HubFile) -> HubFile:
    """Download a file, check it, and upload it; both services check what they send and receive."""
    from huggingface_hub import hf_hub_download

    key = hashlib.sha256(f"{model.uri}@{model.commit}".encode()).hexdigest()[:16]
    directory = processes.cache_directory() / "staging" / key  # a download that was cut off goes on there
    with _hub(f"{model.uri}/{file.name}"):
        repository = model.uri.removeprefix(HUB)
        local = Path(hf_hub_download(repository, file.name, revision=model.commit, local_dir=directory))
    if (digest := _digest(local, file)) != file.digest:
        local.unlink()
        raise ConfigError(
            f"{model.uri}/{file.name}: is corrupt after the download: its digest is {digest}, the hub's {file.digest}; "
            "hint: run again"
        )
    bucket.upload(file.name, local)
    with record.lock:
        record.objects[file.name] = [file.digest, str(bucket.blob(file.name).generation)]
        record.write(bucket)
    local.unlink()
    return file


def _digest(path: Path, file: HubFile) -> str:
    """Return the digest that the hub gives of such a file."""
    is_large = len(file.digest) == hashlib.sha256().digest_size * 2
    digest = hashlib.sha256() if is_large else hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as content:
        while part := content.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
