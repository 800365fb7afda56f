"""Find the line of a log that says what failed, and classify it. Pure.

A container whose program does not report (another runtime, a crash in native code) leaves the tail of its log as its
termination message. The table knows messages of XLA, libtpu, CUDA, JAX and Python's faulthandler, and
NVIDIA's Xid codes of broken hardware (docs.nvidia.com/deploy/xid-errors): memory (48, 63, 64, 94, 95), NVLink (74), bus
(79). NCCL's errors are not in it: they say that a peer is gone, and the peer knows why. An unknown message stays
unexplained, so that a peer with a known one is taken as the cause.
"""

import re

from ptapi.failures import FailureClass
from ptapi.text.terminal import PROGRESS_LINE
from ptoperator.failures.redaction import redact

LINE_LIMIT = 400
LOG_LIMIT = 2000

_TABLE: tuple[tuple[FailureClass, re.Pattern[str]], ...] = (
    (
        FailureClass.OUT_OF_MEMORY_HBM,
        re.compile(
            r"CUDA_ERROR_OUT_OF_MEMORY"
            r"|RESOURCE_EXHAUSTED.*(?:\bhbm\b|memory space|out of memory|(?:trying|attempting) to (?:allocate|reserve))"
            r"|Ran out of memory in memory space hbm|would exceed memory|XLA:TPU compile permanent error.*memory",
            re.IGNORECASE,
        ),
    ),
    (
        FailureClass.HOST_ERROR,
        re.compile(
            r"no healthy devices present|cannot allocate unhealthy devices|uncorrectable ECC"
            r"|TPU (?:chip|core).*unhealthy|ba16c7433 device"
            r"|\bXid \(PCI:[0-9a-f:.]+\): (?:48|63|64|74|79|94|95)\b|GPU has fallen off the bus"
            r"|CUDA_ERROR_(?:ECC|NVLINK)_UNCORRECTABLE|CUDA_ERROR_(?:HARDWARE_STACK_ERROR|SYSTEM_NOT_READY)"
            r"|Failed to (?:open|find) (?:any )?(?:TPU|/dev/(?:accel|vfio))",
            re.IGNORECASE,
        ),
    ),
    (FailureClass.OUT_OF_MEMORY_HOST, re.compile(r"^(?:\w+\.)*MemoryError\b|std::bad_alloc|Cannot allocate memory")),
    (FailureClass.STORAGE, re.compile(r"No space left on device|Read-only file system|Disk quota exceeded")),
)
_STACKS = re.compile(
    r"^(?:Timeout \(\d+:\d\d:\d\d|(?:Current t|T)hread 0x[0-9a-f]+ .*most recent call first)", re.MULTILINE
)
_RELEVANT = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Timeout|Failure)\b.*|error: .*|fatal(?: python)? error:? .*"
    r"|F\d{4} .*|.*Check failed:.*|.*RESOURCE_EXHAUSTED.*|.*INTERNAL:.*|terminate called.*|Segmentation fault.*"
    r"|\*\*\* SIG\w+.*)$",
    re.IGNORECASE,
)


def known_line(text: str) -> tuple[FailureClass, str] | None:
    """Return the class and text of the first line that the table knows, or None."""
    for line in _lines(text):
        for kind, pattern in _TABLE:
            if pattern.search(line):
                return kind, _cut(line)
    return None


def is_stack_dump(text: str) -> bool:
    """Return True if faulthandler ended the program, which is the trainer's last watchdog."""
    return _STACKS.search(text) is not None


def most_relevant_line(text: str) -> str:
    """Return the last line that reads like an error, else the last line; empty for an empty text."""
    lines = _lines(text)
    return _cut(next((line for line in reversed(lines) if _RELEVANT.match(line)), lines[-1] if lines else ""))


def log_tail(text: str) -> str:
    """Return the end of the log for status: whole lines, without secrets."""
    kept = redact("\n".join(line for line in text.strip().splitlines() if not line.startswith(PROGRESS_LINE)))
    if len(kept) <= LOG_LIMIT:
        return kept
    return kept[-LOG_LIMIT:].partition("\n")[2] or kept[-LOG_LIMIT:]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _cut(line: str) -> str:
    return redact(line)[:LINE_LIMIT]
