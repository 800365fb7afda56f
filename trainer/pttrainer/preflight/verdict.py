"""The verdict as one document: `preflight.json`, `ptctl plan -o json`; `table` shows the same to people.

Memory is in bytes per JAX device, because a program runs on one; `devicesPerChip` says how many make a chip.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic.alias_generators import to_camel

from pttrainer.preflight.memory.resident import Buffer
from pttrainer.preflight.timing.collectives import Traffic
from pttrainer.preflight.timing.step_time import Estimate

Stage = Literal["formula", "fast", "full"]
Level = Literal["fast", "full"]
"""Of a compile."""


@dataclass(frozen=True)
class Program:
    """A program's memory, and its minimal traffic and time. stage: source of the numbers. None, empty: not compiled.

    step_seconds: of a train step compiled as training compiles it, by the compiler's estimates (`program_time`).
    """

    name: str
    stage: Stage
    fits: bool
    peak: int
    arguments: int
    temporaries: int
    output: int
    compile_seconds: float | None = None
    collectives: list[Traffic] = field(default_factory=list)
    step_seconds: float | None = None


@dataclass(frozen=True)
class Option:
    """A change, tried with the formula, possibly corrected by the compiler (`Verdict.factor`).

    settings: paths below `spec`; peak, available: per device. hourly: price of the chips, if known.
    """

    change: str
    settings: dict[str, Any]
    peak: int
    available: int
    fits: bool
    chips: int
    devices_per_chip: int = 1
    hourly: float | None = None


@dataclass(frozen=True)
class Verdict:
    """The findings about a job.

    phases: what is on a device at the highest moment of each; the highest sum is the peak. arrays: the largest of
    training's state, by name. remat: the policy of recomputation that was judged, which `auto` leaves to preflight.
    estimate: None for devices without published rates. factor: the compiler's correction of the formula for options.
    """

    job: str
    model: str
    parameters: int
    trained_parameters: int
    accelerator: str
    chips: int
    devices: int
    devices_per_chip: int
    mesh: dict[str, int]
    remat: str
    fits: bool
    stage: Stage
    peak: int
    available: int
    peak_during: str
    programs: list[Program]
    phases: dict[str, list[Buffer]]
    largest: list[Buffer]
    arrays: list[Buffer]
    collectives: list[Traffic] | None
    estimate: Estimate | None
    assumptions: list[str]
    notes: list[str]
    factor: float
    options: list[Option]
    smallest: list[Option]
    versions: dict[str, str]

    def document(self) -> dict[str, Any]:
        """Return the verdict as JSON, keys in camelCase."""
        return {to_camel(key): _plain(value) for key, value in dataclasses.asdict(self).items()}

    def line(self) -> str:
        """Return one line for a condition or a log."""
        outcome = "fits" if self.fits else "does not fit"
        by = "" if self.stage == "full" else f" ({self.stage})"
        return f"{outcome}: {self.compared()} on {self.accelerator}{by}" + (
            "" if self.estimate is None else f"; at least {self.estimate.seconds:.3g} s/step"
        )

    def compared(self) -> str:
        """Return `peak 29.8 of 95.7 GiB per chip`; a close call gets two digits, `peak 15.76 of 15.75 GiB per chip`."""
        peak, has = (size * self.devices_per_chip / 2**30 for size in (self.peak, self.available))
        digits = 1 if f"{peak:.1f}" != f"{has:.1f}" else 2
        if not self.fits and f"{peak:.2f}" == f"{has:.2f}":
            return f"peak over {has:.2f} of {has:.2f} GiB per chip"  # the compiler's refusals have no more digits
        return f"peak {peak:.{digits}f} of {has:.{digits}f} GiB per chip"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        # Paths of the spec and names of programs (`rollout/decode`) stay as they are.
        return {to_camel(key) if key.isidentifier() else key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
