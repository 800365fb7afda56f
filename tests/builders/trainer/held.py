"""`python -m pttrainer`, which shows a step's line only once there is a file: until then the run is at that step.

HOLD_AT_STEP and HOLD_UNTIL say which. Only the thread that trains waits; signals and other threads go on.
"""

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any, TextIO


class _Gate:
    """Standard output that waits before it takes the step's line."""

    def __init__(self, stream: TextIO, step: int, until: Path) -> None:
        self._stream, self._line, self._until = stream, f"step {step}/", until

    def write(self, text: str) -> int:
        """As the stream does, later."""
        while text.startswith(self._line) and not self._until.exists():
            time.sleep(0.01)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


if __name__ == "__main__":
    sys.stdout = _Gate(  # type: ignore[assignment]
        sys.stdout, int(os.environ["HOLD_AT_STEP"]), Path(os.environ["HOLD_UNTIL"])
    )
    runpy.run_module("pttrainer", run_name="__main__", alter_sys=True)
