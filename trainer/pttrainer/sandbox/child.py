"""The child process that runs what may hang, crash or eat memory: `python -m pttrainer.sandbox.child`.

JSON lines on stdin and stdout, `[word, message]` each way, the word of an answer being that of its message: first a
source (`handlers`), answered with {"takes": …} or {"error": …}; then one request a line, answered with {"value": …} or
{"error": …}. The child never decides about time: its parent kills it. It dies with its parent, also when the parent was
killed with -9 while the user's code was running (Linux; elsewhere it ends at the next read).

Memory is bounded (`MEMORY_SHARE`); where it runs out all the same, the kernel ends the child and not the trainer.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pttrainer.sandbox import confinement, handlers

MARK = "POSTTRAIN_CHILD"
"""The environment variable that all of a child's processes share, so that they can be found."""
MEMORY_SHARE = 0.5
"""Of the machine's or container's memory that one child may have."""
_PR_SET_PDEATHSIG = 1
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def main() -> None:
    """Serves until stdin ends."""
    _die_with_parent()
    _limit_memory()
    me = os.getpid()
    requests = (json.loads(line) for line in os.fdopen(os.dup(0)))
    answers = os.fdopen(os.dup(1), "w")
    # What the user's code prints goes to the log, not into the answers, and it does not read the requests.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def say(word: str, answer: dict[str, Any]) -> None:
        if os.getpid() != me:
            os._exit(0)  # a copy of this process, which the user's code forked and forgot
        print(json.dumps([word, answer]), file=answers, flush=True)

    word, source = next(requests)
    try:
        handler = handlers.load(source)
        say(word, {"takes": handler.takes, **handler.told})
    except BaseException as error:
        say(word, {"error": handlers.words(error)})
        return
    for word, request in requests:
        say(word, handlers.answer(handler.handle, request))


def _die_with_parent() -> None:
    """And not the other way round."""
    if sys.platform == "linux":
        parent = os.getppid()
        confinement.spare(parent)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit()


def _limit_memory() -> None:
    """Of what is written, not of what is only reserved: libraries reserve more than there is."""
    if sys.platform != "linux":
        return
    most, (_, hard) = int(MEMORY_SHARE * memory()), resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with suppress(OSError):  # sandboxed kernels may not have it
        Path("/proc/self/oom_score_adj").write_text("1000")


def memory() -> int:
    """Bytes that this container may have, or that there are."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for place in map(Path, _CGROUP_LIMITS):
        if place.exists() and (text := place.read_text().strip()).isdigit():
            found.append(int(text))
    return min(found)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the trainer, which ends its children itself
    main()
