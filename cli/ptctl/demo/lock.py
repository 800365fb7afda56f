"""One demo at a time: two in a directory would take each other's output, two on a cluster each other's jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ptctl.errors import CliError
from ptlocal.locks import held, holder
from ptlocal.paths import DATA_DIR_ENV

_BESIDE = f"wait for it, or run one beside it: {DATA_DIR_ENV}=OTHER_CLUSTER ptctl demo --dir OTHER_DIRECTORY"


@contextmanager
def alone(*locks: Path) -> Iterator[None]:
    """While this lasts, no other demo has any of these locks. Raises CliError where one has."""
    with ExitStack() as taken:
        for lock in locks:
            lock.parent.mkdir(parents=True, exist_ok=True)
            if not taken.enter_context(held(lock, wait_s=0.0)):
                who = f" (process {pid})" if (pid := holder(lock)) else ""
                raise CliError(f"another demo{who} is running in {lock.parent}", _BESIDE)
        yield
