"""One demo at a time: two in a directory would overwrite each other's output, two on a cluster each other's jobs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ptctl.errors import CliError
from ptlocal.locks import file_lock, lock_holder
from ptlocal.paths import DATA_DIR_ENV

_HINT = f"wait for it, or run another one separately: {DATA_DIR_ENV}=OTHER_CLUSTER ptctl demo --dir OTHER_DIRECTORY"


@contextmanager
def exclusive(*locks: Path) -> Iterator[None]:
    """Hold all of these locks. Raises CliError if another demo holds one of them."""
    with ExitStack() as stack:
        for lock in locks:
            lock.parent.mkdir(parents=True, exist_ok=True)
            if not stack.enter_context(file_lock(lock, wait_s=0.0)):
                owner = f" (process {pid})" if (pid := lock_holder(lock)) else ""
                raise CliError(f"another demo{owner} is running in {lock.parent}", _HINT)
        yield
