"""The child process of code that may hang, crash or exhaust memory: `python -m pttrainer.sandbox.child`.

JSON lines on stdin and stdout, `[token, message]` each way; an answer repeats the token of its message: first a source
(`handlers`), answered with {"takes": …} or {"error": …}; then one request per line, answered with {"value": …} or
{"error": …}. The child enforces no time limit: its parent kills it. It dies with its parent, even if the parent was
killed with -9 while user code was running (Linux; elsewhere it ends at the next read).

Memory is bounded (`MEMORY_SHARE`); if it runs out anyway, the kernel kills the child and not the trainer.
"""

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
"""Environment variable shared by all of a child's processes, so that they can be found."""
MEMORY_SHARE = 0.5
"""Share of the machine's or container's memory that one child may use."""
_PR_SET_PDEATHSIG = 1
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def main() -> None:
    """Serve requests until stdin ends."""
    _die_with_parent()
    _limit_memory()
    me = os.getpid()
    requests = (json.loads(line) for line in os.fdopen(os.dup(0)))
    answers = os.fdopen(os.dup(1), "w")
    # What the user's code prints goes to the log, not into the answers, and it does not read the requests.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def send(word: str, answer: dict[str, Any]) -> None:
        if os.getpid() != me:
            os._exit(0)  # the user's code forked this process and never exits the copy
        print(json.dumps([word, answer]), file=answers, flush=True)

    word, source = next(requests)
    try:
        handler = handlers.load(source)
        send(word, {"takes": handler.takes, **handler.details})
    except BaseException as error:
        send(word, {"error": handlers.error_message(error)})
        return
    for word, request in requests:
        send(word, handlers.answer(handler.handle, request))


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies."""
    if sys.platform == "linux":
        parent = os.getppid()
        confinement.protect_from_signals(parent)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit()


def _limit_memory() -> None:
    """Limit the data segment, not the address space: libraries reserve more than there is."""
    if sys.platform != "linux":
        return
    most, (_, hard) = int(MEMORY_SHARE * memory()), resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with suppress(OSError):  # sandboxed kernels may not have it
        Path("/proc/self/oom_score_adj").write_text("1000")


def memory() -> int:
    """Return the memory limit of this container in bytes, or the machine's memory."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for place in map(Path, _CGROUP_LIMITS):
        if place.exists() and (text := place.read_text().strip()).isdigit():
            limits.append(int(text))
    return min(limits)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the trainer, which ends its children itself
    main()
