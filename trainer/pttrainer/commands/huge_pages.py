"""Memory in large pages, for what jax allocates on a CPU: weights are read whole at every token and every step, and in
pages of 4 kB a processor looks up addresses for much of that time (docs/findings/sampling-on-cpu.md has figures).

glibc's malloc asks the kernel for large pages where a tunable says so, and reads it only when a process starts. So the
process becomes itself once more, with the tunable, before it has imported anything that is slow. Whoever has set the
tunable, to 0 for instance, is respected; a kernel or C library without it takes no notice.
"""

from __future__ import annotations

import os
import sys

VARIABLE, TUNABLE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
"""https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html"""


def use() -> None:
    """Returns in a process that has the tunable; first thing in a program, when there is nothing to lose."""
    tunables = os.environ.get(VARIABLE, "")
    if sys.platform != "linux" or TUNABLE in tunables:
        return
    os.environ[VARIABLE] = ":".join(filter(None, [tunables, f"{TUNABLE}=1"]))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
