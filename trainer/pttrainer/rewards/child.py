"""The child process that runs what may hang, crash or eat memory: `python -m pttrainer.rewards.child`.

JSON lines on stdin and stdout: first a source (`handlers`), answered with {"takes": …} or {"error": …}; then one
request a line, answered with {"value": …} or {"error": …}. The child never decides about time: its parent kills
it. It dies with its parent, also when the parent was killed with -9 while the user's code was running (Linux;
elsewhere it ends at the next read).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

from pttrainer.rewards import handlers, user

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serves until stdin ends."""
    _die_with_parent()
    requests = (json.loads(line) for line in os.fdopen(os.dup(0)))
    answers = os.fdopen(os.dup(1), "w")
    # What the user's code prints goes to the log, not into the answers, and it does not read the requests.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        handler = handlers.load(next(requests))
    except user.RewardCodeError as error:
        say({"error": str(error)})
        return
    say({"takes": handler.takes, **handler.told})
    for request in requests:
        say(handlers.answer(handler.handle, request))


def _die_with_parent() -> None:
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the trainer, which ends its children itself
    main()
