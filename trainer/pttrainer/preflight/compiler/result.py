"""The compiler's answer about a program, and arithmetic on such answers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pttrainer.preflight.timing.collectives import Traffic, grown

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_AMOUNT = r"([0-9.]+)([KMGT]?)i?B?"
_NEEDS = re.compile(rf"(?:required[^()]*\(|Used ){_AMOUNT}\)?")
_HAS = re.compile(rf"(?:exceeds available HBM \(|of ){_AMOUNT}")


@dataclass(frozen=True)
class Compiled:
    """The compiler's answer about one program; bytes are per device.

    has: available memory, if it refused. step_seconds: of one run, by the compiler's estimates (`program_time`).
    """

    fits: bool
    seconds: float
    peak: int
    arguments: int = 0
    temporaries: int = 0
    output: int = 0
    has: int | None = None
    traffic: tuple[Traffic, ...] = ()
    step_seconds: float | None = None

    def beside(self, other: Compiled, times: int) -> Compiled:
        """Combine with a program that runs after it so many times, and whose results stay."""
        arguments, output = self.arguments + other.arguments, self.output + times * other.output
        temporaries = max(self.temporaries, other.temporaries)
        return Compiled(
            self.fits and other.fits,
            self.seconds + other.seconds,
            arguments + output + temporaries,
            arguments,
            temporaries,
            output,
            self.has or other.has,
            (*self.traffic, *(one.times(times) for one in other.traffic)),
        )


Answer = dict[str, Compiled]
"""By name of program."""


def deeper(few: Compiled, more: Compiled, steps: float, has: int) -> Compiled:
    """Extrapolate to a model with `steps` times the additional layers of `more` over `few`.

    A refused program reports its need, too.
    """

    def of(name: str) -> int:
        return int((1 - steps) * getattr(few, name) + steps * getattr(more, name))

    peak = of("peak")
    return Compiled(
        few.fits and more.fits and peak <= has,
        few.seconds + more.seconds,
        peak,
        of("arguments"),
        of("temporaries"),
        of("output"),
        has,
        grown(few.traffic, more.traffic, steps),
    )


def out_of_memory(message: str) -> tuple[int, int] | None:
    """Return (needs, has) in bytes, from the compiler's refusal; None for any other message."""
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    needs, has = _NEEDS.search(message), _HAS.search(message)
    return None if needs is None or has is None else (_bytes(needs), _bytes(has))


def _bytes(match: re.Match[str]) -> int:
    return int(float(match[1]) * _UNITS[match[2]])
