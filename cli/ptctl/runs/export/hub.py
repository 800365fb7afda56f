"""A model repository of the Hugging Face hub: one commit holds the whole result, or nothing of it.

Large files go up before the commit and are known to the hub by their digest, so a command that is repeated sends only
what did not arrive. A commit that somebody else makes meanwhile is refused, not written over.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ptctl.errors import CliError, InputError
from ptctl.runs.export.destination import RECORD, Claim, Note, here
from ptctl.runs.export.source import Source

_LOGIN = "set HF_TOKEN, or log in with `hf auth login`; the token needs the right to write there"


class Hub:
    """A repository, made (private) if it does not exist."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._repository = uri.removeprefix("hf://").rstrip("/")
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", self._repository):
            raise InputError(f"{uri}: not a model repository; accepted: hf://ORGANISATION/NAME")
        try:
            from huggingface_hub import HfApi
        except ImportError as error:
            raise CliError(
                f"{uri}: the hub's client is not installed", "pip install 'posttrain[cli,trainer-cpu]'"
            ) from error
        self._api = HfApi()
        self._head: str | None = None

    def names(self) -> list[str]:
        """Return the names of all files; none if there is no such repository."""
        from huggingface_hub.errors import RepositoryNotFoundError

        with self._errors():
            try:
                info = self._api.model_info(self._repository)
            except RepositoryNotFoundError:
                return []
        self._head = info.sha
        return sorted(sibling.rfilename for sibling in info.siblings or [])

    def record(self) -> bytes | None:
        """Return the record, None if there is none."""
        from huggingface_hub.errors import EntryNotFoundError

        if self._head is None:
            return None
        with self._errors(), tempfile.TemporaryDirectory(prefix="posttrain-") as cache:
            try:
                return Path(self._api.hf_hub_download(self._repository, RECORD, local_dir=cache)).read_bytes()
            except EntryNotFoundError:
                return None

    def write(self, source: Source, claim: Claim, note: Note) -> None:
        """Commit everything at once."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        with self._errors(), tempfile.TemporaryDirectory(prefix="posttrain-") as scratch:
            if self._head is None:
                self._api.create_repo(self._repository, private=True, exist_ok=True)
                note(f"{self.uri}: made, private")
            changes: list[Any] = [CommitOperationDelete(name) for name in claim.stale if name not in source.digests]
            changes.append(CommitOperationAdd(RECORD, claim.record))
            for name, expected in source.digests.items():
                path = here(source, name, expected, Path(scratch))
                changes.append(CommitOperationAdd(name, path))
            commit = self._api.create_commit(
                self._repository, changes, commit_message="Export by posttrain", parent_commit=self._head
            )
        note(f"{self.uri}: {len(source.digests)} files in commit {commit.oid[:12]}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise CliError with what the hub answers."""
        from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

        disable_progress_bars()
        try:
            yield
        except CliError:
            raise
        except Exception as error:
            if not (isinstance(error, OSError) or type(error).__module__.startswith(("httpx", "huggingface_hub"))):
                raise
            raise CliError(
                f"{self.uri}: {' '.join(str(error).split())}", _LOGIN if _status(error) in (401, 403) else ""
            ) from error


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)
