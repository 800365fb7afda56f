"""The operator in a process whose wall clock is off by as many seconds as a file says; for `soak.py`.

    python benchmarks/operator_and_cli/jumping_clock.py FILE [arguments of python -m ptoperator]

The file is read whenever the clock is, so the clock jumps when the file is written. Not done with libfaketime: its
0.9.10 makes `time.sleep` of Python 3.11 fail. What this leaves out are `time.time` and `datetime.now` in libraries
(gRPC's own clock would not follow); operator and client compare times by `ptkube.timestamps` alone.
"""

import runpy
import sys
from datetime import timedelta
from pathlib import Path

from ptkube import timestamps


def let_jump(file: Path) -> None:
    """Let this process read its clock so many seconds off."""
    real_now = timestamps.utc_now
    timestamps.utc_now = lambda: real_now() + timedelta(seconds=float(file.read_text()))


def jump(file: Path, off_s: float) -> None:
    """Let the clocks that follow this file be so many seconds off."""
    new = file.with_suffix(".new")
    new.write_text(f"{off_s}")
    new.replace(file)


if __name__ == "__main__":
    let_jump(Path(sys.argv.pop(1)))
    runpy.run_module("ptoperator", run_name="__main__", alter_sys=True)
