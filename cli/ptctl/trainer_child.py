"""The process in which ptctl runs the trainer. It ends when ptctl is gone, even if ptctl was killed with -9.

ptctl keeps the other end of a pipe open and writes nothing: the end of the pipe is the end of ptctl.
"""

import os
import runpy
import signal
import sys
import threading
import time
import traceback

_TRAINER = "pttrainer"
_SAVE_S = 30.0
"""Time to save a checkpoint after ptctl is gone."""


def run(pipe: int, args: list[str]) -> int:
    """Run the trainer's command line in this process, like `python -m pttrainer`, and return its exit code."""
    threading.Thread(target=_end_with_ptctl, args=(pipe,), daemon=True).start()
    sys.argv = [_TRAINER, *args]
    code: object = 1
    try:
        runpy.run_module(_TRAINER, run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def _end_with_ptctl(pipe: int) -> None:
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_SAVE_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))
