"""How slow this processor is, for tests that bound what a command costs in CPU-seconds.

The bounds were set where `ptctl --help` took 0.06 CPU-seconds, and a process that imports the modules below 0.1. A
slower processor, or one whose neighbours are busy, needs as much more for the same work; a faster one gets no more
than the bound.
"""

import resource
import subprocess
import sys

IMPORTS = "asyncio, unittest.mock, email.mime.text, http.server, xml.dom.minidom, decimal, concurrent.futures, pydoc"
CPU_SECONDS = 0.1


def slowness() -> float:
    """Return how many times as long this processor takes now as that one, at least 1."""
    return max(1.0, min(_seconds() for _ in range(2)) / CPU_SECONDS)


def _seconds() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-I", "-c", f"import {IMPORTS}"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
