"""Large memory pages for what jax allocates on a CPU.

Weights are read whole at every token and every step, and with pages of 4 kB a processor spends much of that time on
address lookups (figures: docs/findings/sampling-on-cpu.md). glibc's malloc asks the kernel for large pages if a tunable
says so, and reads it only when a process starts. So the process executes itself once more, with the tunable, before it
has imported anything slow. A tunable that is already set, for example to 0, is respected; a kernel or C library without
it ignores it.
"""

import os
import sys

VARIABLE, TUNABLE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
"""https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html"""


def use() -> None:
    """Return in a process that has the tunable. Call first in a program, when there is nothing to lose."""
    tunables = os.environ.get(VARIABLE, "")
    if sys.platform != "linux" or TUNABLE in tunables:
        return
    os.environ[VARIABLE] = ":".join(filter(None, [tunables, f"{TUNABLE}=1"]))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
