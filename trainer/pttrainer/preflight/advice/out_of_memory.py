"""Explain chip memory that ran out during a run: the largest buffers by XLA, and what would fit by the formula.

XLA's error is pages long and says the essential in the middle: what the program needs and has, and its largest buffers
with the operation that makes each. This module condenses it to one line for the termination message; the full text is
in the log. The formula (`fitting_change`) is corrected by XLA's number.

Left out: other memories of a chip (vmem, smem); those are a kernel's bug, and no other accelerator helps.
"""

import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ptapi.spec import PostTrainJob

NAMED = 3
"""Number of buffers to name."""
SUGGESTION_TIMEOUT_S = 60.0
"""Timeout of the formula: a pod that ends late holds chips."""
GIB = 2**30
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_AMOUNT = r"([0-9.]+) ?([KMGT]?)(?:i?B|ytes| bytes)?\b"
_USED = re.compile(rf"Used {_AMOUNT} of {_AMOUNT} hbm")
_FREE = re.compile(
    rf"(?:allocate|reserve) {_AMOUNT}.{{0,80}}?That was not possible\. There (?:are|is) {_AMOUNT} free", re.S
)
_REQUESTED = re.compile(rf"trying to allocate {_AMOUNT}")
_BLOCK = re.compile(rf"^[ \t]*(?:\d+\. +)?Size: {_AMOUNT}[^\n]*\n(?P<rest>.*?)^[ \t]*={{5,}}", re.MULTILINE | re.DOTALL)
_OPERATOR = re.compile(r'op_name="([^"\[]*)')
_SHAPE = re.compile(r"^[ \t]*(?:Shape|Entry Parameter Subshape): (\w+\[[\d,]*\])", re.MULTILINE)
_WRAPPER = re.compile(r"^(?:p?jit|jvp|vmap|transpose|remat|checkpoint)?\(.*\)$|^(?:while|body|cond|closed_call)$")


@dataclass(frozen=True)
class Shortage:
    """XLA's numbers, per device. needs, has: of a program; requested, free: of a single buffer. None: not reported."""

    needs: int | None = None
    has: int | None = None
    requested: int | None = None
    free: int | None = None
    largest: tuple[str, ...] = ()


def read(text: str) -> Shortage:
    """Parse the text of a RESOURCE_EXHAUSTED error."""
    largest = tuple(_largest(text))
    if used := _USED.search(text):
        return Shortage(needs=_bytes(used, 1), has=_bytes(used, 3), largest=largest)
    if free := _FREE.search(text):
        return Shortage(requested=_bytes(free, 1), free=_bytes(free, 3), largest=largest)
    match = _REQUESTED.search(text)
    return Shortage(requested=_bytes(match, 1) if match else None, largest=largest)


def explain(error: BaseException, job: PostTrainJob) -> str:
    """Return one line: how much is missing, the largest buffers, and what would fit."""
    shortage = read(str(error))
    parts = [_missing(shortage)]
    if shortage.largest:
        parts.append(f"largest: {', '.join(shortage.largest)}")
    else:
        parts.append(str(error).strip().partition("\n")[0][:400])
    parts += _suggestion(job, shortage)
    return "; ".join(parts)


def _missing(shortage: Shortage) -> str:
    if shortage.needs is not None and shortage.has is not None:
        return f"the chip's memory ran out: the program needs {_gib(shortage.needs)} of {_gib(shortage.has)} GiB"
    if shortage.requested is not None and shortage.free is not None:
        needs, free = _gib(shortage.requested), _gib(shortage.free)
        return f"the chip's memory ran out: {needs} GiB were asked for, {free} GiB were free"
    amount = f": {_gib(shortage.requested)} GiB were asked for" if shortage.requested is not None else ""
    return f"the chip's memory ran out{amount}"


def _suggestion(job: PostTrainJob, shortage: Shortage) -> list[str]:
    """Return the formula's suggestion; its own failure must never hide why the job failed."""
    answers: list[str] = []

    def ask() -> None:
        try:
            from pttrainer.preflight.advice.fitting_change import suggest

            answers.append(suggest(job.spec, shortage.needs))
        except Exception as error:  # a model that cannot be read, a chip that nobody knows
            print(f"note: what would fit is not known: {type(error).__name__}: {error}", flush=True)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout=SUGGESTION_TIMEOUT_S)
    return [answer for answer in answers if answer]


def _largest(text: str) -> Iterator[str]:
    """Yield `24 x 2.0 GiB f32[32,4096,4096] (self_attention/dot_general)`: largest total first."""
    sizes: dict[tuple[str, str], int] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for block in _BLOCK.finditer(text):
        rest = block["rest"]
        operator, shape = _OPERATOR.search(rest), _SHAPE.search(rest)
        kind = (
            shape[1] if shape else "",
            _short(operator[1]) if operator else "an argument" if "Parameter" in rest else "",
        )
        sizes[kind] = max(sizes.get(kind, 0), _bytes(block, 1))
        counts[kind] += 1
    for kind in sorted(sizes, key=lambda kind: -sizes[kind] * counts[kind])[:NAMED]:
        shape_words, by = kind
        times = f"{counts[kind]} x " if counts[kind] > 1 else ""
        yield " ".join(filter(None, (f"{times}{_gib(sizes[kind])} GiB", shape_words, f"({by})" if by else "")))


def _short(name: str) -> str:
    """Return the end of an operation's path, without JAX's wrappers."""
    parts = [part for part in name.split("/") if part and not _WRAPPER.match(part)]
    return "/".join(parts[-3:])[:80]


def _bytes(match: re.Match[str], group: int) -> int:
    return int(float(match[group].rstrip(".")) * _UNITS[match[group + 1]])


def _gib(count: int) -> str:
    return f"{count / GIB:.4g}"
