"""`python -m pttrainer` with a compiler that never ends, and a signal to stop before the first step."""

import os
import signal
import sys
import threading
from typing import Any

from pttrainer import __main__
from pttrainer.runtime.background_compile import BackgroundCompile
from pttrainer.training import setup

_made = setup._state


def _stopped(*given: Any) -> Any:
    os.kill(os.getpid(), signal.SIGTERM)
    return _made(*given)


if __name__ == "__main__":
    BackgroundCompile._compile = lambda *_: threading.Event().wait()  # type: ignore[assignment, method-assign]
    setup._state = _stopped  # type: ignore[assignment]
    sys.exit(__main__.main())
