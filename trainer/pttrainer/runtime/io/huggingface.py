"""Hugging Face's hub, through its own client and shared cache; its errors are translated to the job's fields."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pttrainer.errors import NetworkError, TrainerError, first_line
from pttrainer.runtime.io.outages import is_outage
from pttrainer.runtime.io.storage_errors import is_storage_problem

HUB = "hf://"
DATASETS = f"{HUB}datasets/"
REACHABLE = "hint: is the hub reachable from here?"


def dataset_commit(repository: str, revision: str | None) -> str:
    """Return the commit that a data set's branch or tag (None: the default branch) points to now."""
    from huggingface_hub import HfApi

    return str(HfApi().dataset_info(repository, revision=revision).sha)


def dataset_names(repository: str, commit: str) -> list[str]:
    """Return the names of all files of a data set."""
    from huggingface_hub import HfApi

    return list(HfApi().list_repo_files(repository, repo_type="dataset", revision=commit))


def dataset_files(repository: str, commit: str, names: Sequence[str]) -> dict[str, Path]:
    """Return local paths of a data set's files, downloading the missing ones."""
    from huggingface_hub import hf_hub_download

    return {name: Path(hf_hub_download(repository, name, repo_type="dataset", revision=commit)) for name in names}


@contextmanager
def hub_errors(
    where: str,
    kind: str,
    raised: type[TrainerError],
    token: str = "name the Secret with your token in spec.model.tokenSecretRef",
) -> Iterator[None]:
    """Turn the client's exceptions into errors that say what to do.

    kind: "model" or "data set". token: how one's token gets here.
    """
    from huggingface_hub import errors
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        yield
    except errors.HFValidationError as error:
        raise raised(f"{where}: not a repository name; accepted: hf://organisation/name") from error
    except errors.GatedRepoError as error:
        raise raised(f"{where}: you have no access; hint: request it on the {kind}'s page, and {token}") from error
    except errors.RepositoryNotFoundError as error:
        raise raised(
            f"{where}: no such {kind}, or you have no access to it; hint: for a private one, {token}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise raised(f"{where}: no such branch, tag or commit; accepted: a revision of the {kind}") from error
    except Exception as error:
        if is_storage_problem(error) or not (isinstance(error, OSError) or _is_of_http(error)):
            raise
        kind_raised = NetworkError if is_outage(error) else raised
        raise kind_raised(f"{where}: cannot be fetched: {first_line(error)}; {REACHABLE}") from error


def _is_of_http(error: Exception) -> bool:
    """Return True for an exception of the client's HTTP library; which library that is depends on its version."""
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "requests", "huggingface_hub")
