"""Chip memory that ran out while the job ran: who took it, in XLA's own words, and what would fit, by the formula.

XLA's refusal is pages long and says the essential in the middle: what the program needs and has, and its largest
buffers with the operation that makes each. Here that becomes one line for the termination message; the whole text is
in the log. The formula (`preflight.remedy`) is corrected by what XLA says is needed, for it has just been too kind.

Left out: other memories of a chip (vmem, smem); those are a kernel's mistake, and no other accelerator helps.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ptapi.spec import PostTrainJob

NAMED = 3
"""Buffers that are named."""
REMEDY_S = 60.0
"""The formula is waited for this long: a pod that ends late holds chips."""
GIB = 2**30
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_AMOUNT = r"([0-9.]+) ?([KMGT]?)(?:i?B|ytes| bytes)?\b"
_USED = re.compile(rf"Used {_AMOUNT} of {_AMOUNT} hbm")
_FREE = re.compile(
    rf"(?:allocate|reserve) {_AMOUNT}.{{0,80}}?That was not possible\. There (?:are|is) {_AMOUNT} free", re.S
)
_ASKED = re.compile(rf"trying to allocate {_AMOUNT}")
_BLOCK = re.compile(rf"^[ \t]*(?:\d+\. +)?Size: {_AMOUNT}[^\n]*\n(?P<rest>.*?)^[ \t]*={{5,}}", re.MULTILINE | re.DOTALL)
_OPERATOR = re.compile(r'op_name="([^"\[]*)')
_SHAPE = re.compile(r"^[ \t]*(?:Shape|Entry Parameter Subshape): (\w+\[[\d,]*\])", re.MULTILINE)
_WRAPPER = re.compile(r"^(?:p?jit|jvp|vmap|transpose|remat|checkpoint)?\(.*\)$|^(?:while|body|cond|closed_call)$")


@dataclass(frozen=True)
class Shortage:
    """What XLA says, per device. needs, has: of a program; of a single buffer, `asked` and `free`. None: not said."""

    needs: int | None = None
    has: int | None = None
    asked: int | None = None
    free: int | None = None
    largest: tuple[str, ...] = ()


def read(text: str) -> Shortage:
    """From the text of a RESOURCE_EXHAUSTED error."""
    largest = tuple(_largest(text))
    if used := _USED.search(text):
        return Shortage(needs=_bytes(used, 1), has=_bytes(used, 3), largest=largest)
    if free := _FREE.search(text):
        return Shortage(asked=_bytes(free, 1), free=_bytes(free, 3), largest=largest)
    asked = _ASKED.search(text)
    return Shortage(asked=_bytes(asked, 1) if asked else None, largest=largest)


def explain(error: BaseException, job: PostTrainJob) -> str:
    """One line: how much was missing, the largest buffers, and what would fit."""
    found = read(str(error))
    parts = [_missing(found)]
    if found.largest:
        parts.append(f"largest: {', '.join(found.largest)}")
    else:
        parts.append(str(error).strip().partition("\n")[0][:400])
    parts += _remedy(job, found)
    return "; ".join(parts)


def _missing(found: Shortage) -> str:
    if found.needs is not None and found.has is not None:
        return f"the chip's memory ran out: the program needs {_gib(found.needs)} of {_gib(found.has)} GiB"
    if found.asked is not None and found.free is not None:
        return f"the chip's memory ran out: {_gib(found.asked)} GiB were asked for, {_gib(found.free)} GiB were free"
    asked = f": {_gib(found.asked)} GiB were asked for" if found.asked is not None else ""
    return f"the chip's memory ran out{asked}"


def _remedy(job: PostTrainJob, found: Shortage) -> list[str]:
    """The formula's answer. Nothing that goes wrong here may hide why the job failed."""
    answers: list[str] = []

    def ask() -> None:
        try:
            from pttrainer.preflight.advice.fitting_change import remedy

            answers.append(remedy(job.spec, found.needs))
        except Exception as error:  # a model that cannot be read, a chip that nobody knows
            print(f"note: what would fit is not known: {type(error).__name__}: {error}", flush=True)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout=REMEDY_S)
    return [answer for answer in answers if answer]


def _largest(text: str) -> Iterator[str]:
    """`24 x 2.0 GiB f32[32,4096,4096] (self_attention/dot_general)`: equal ones counted, the largest together first."""
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
    """The last words of an operation's path, without JAX's wrappers."""
    parts = [part for part in name.split("/") if part and not _WRAPPER.match(part)]
    return "/".join(parts[-3:])[:80]


def _bytes(match: re.Match[str], group: int) -> int:
    return int(float(match[group].rstrip(".")) * _UNITS[match[group + 1]])


def _gib(count: int) -> str:
    return f"{count / GIB:.4g}"
