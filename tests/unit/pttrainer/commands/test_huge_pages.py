"""A program that starts itself once more, with malloc's tunable."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from pttrainer.commands import huge_pages
huge_pages.use()
print(os.getpid(), os.environ["GLIBC_TUNABLES"], *sys.argv[1:])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has tunables")
@pytest.mark.parametrize(
    ("given", "then"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.perturb=0", "glibc.malloc.perturb=0:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_the_process_stays_itself_and_gets_the_tunable_unless_it_is_set(given: str | None, then: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    environment.update({} if given is None else {"GLIBC_TUNABLES": given})
    command = [sys.executable, "-W", "error", "-c", PROGRAM, "run", "a job.yaml"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        output = process.communicate()[0]
    assert process.returncode == 0
    assert output == f"{process.pid} {then} run a job.yaml\n"
