"""Hugging Face's hub, through its own client and its shared cache; what goes wrong is told in the job's words."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pttrainer.errors import TrainerError, first_line
from pttrainer.runtime.io.storage import is_storage_problem

HUB = "hf://"
DATASETS = f"{HUB}datasets/"
REACHABLE = "hint: is the hub reachable from the pod?"


def dataset_commit(repository: str, revision: str | None) -> str:
    """The commit that a branch or tag (None: the default branch) of a data set is now."""
    from huggingface_hub import HfApi

    return str(HfApi().dataset_info(repository, revision=revision).sha)


def dataset_names(repository: str, commit: str) -> list[str]:
    """All files of a data set."""
    from huggingface_hub import HfApi

    return list(HfApi().list_repo_files(repository, repo_type="dataset", revision=commit))


def dataset_files(repository: str, commit: str, names: Sequence[str]) -> dict[str, Path]:
    """Where files of a data set are on this machine, after fetching what is not there."""
    from huggingface_hub import hf_hub_download

    return {name: Path(hf_hub_download(repository, name, repo_type="dataset", revision=commit)) for name in names}


@contextmanager
def told(where: str, kind: str, raised: type[TrainerError]) -> Iterator[None]:
    """Turns what the client raises into errors that say what to do. kind: model or data set."""
    from huggingface_hub import errors
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    if not sys.stderr.isatty():
        disable_progress_bars()
    token = "name the Secret with your token in spec.model.tokenSecretRef"
    try:
        yield
    except errors.HFValidationError as error:
        raise raised(f"{where}: not a repository's name; accepted: hf://organisation/name") from error
    except errors.GatedRepoError as error:
        raise raised(
            f"{where}: access must be granted to you; hint: ask for it on the {kind}'s page, and {token}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise raised(f"{where}: no such {kind}, or none that you may see; hint: for a private one, {token}") from error
    except errors.RevisionNotFoundError as error:
        raise raised(f"{where}: no such branch, tag or commit; accepted: a revision of the {kind}") from error
    except Exception as error:
        if is_storage_problem(error) or not (isinstance(error, OSError) or _is_of_http(error)):
            raise
        raise raised(f"{where}: cannot be fetched: {first_line(error)}; {REACHABLE}") from error


def _is_of_http(error: Exception) -> bool:
    """The client lets its HTTP library's exceptions through; which library that is depends on its version."""
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "requests", "huggingface_hub")
