"""The verdict for the operator: `status.preflight`, small enough for a pod's termination message.

A negative formula fails a job only if it is clear, and so does the fast compile of the step: between a chip's memory
and `HOPELESS` times that, only the full compile decides, and without it the job continues.
"""

from collections.abc import Iterator
from typing import Any, Literal

from ptapi.status import PreflightChange, PreflightProgram, PreflightStatus
from pttrainer.preflight.memory.staged_check import HOPELESS
from pttrainer.preflight.shapes.passes import TRAIN_STEP
from pttrainer.preflight.timing.step_time import Estimate
from pttrainer.preflight.verdict import Option, Stage, Verdict

BYTES = 3500
"""Kubernetes keeps 4,096 bytes of a termination message; the rest is for the JSON around the verdict."""
CHANGES = 3
BUFFERS = 6
GIB = 2**30
Outcome = Literal["Fits", "DoesNotFit", "Undecided"]


def summarize(of: Verdict, key: str = "", *, remembered: bool = False) -> PreflightStatus:
    """Return the verdict's numbers, per chip, and the best changes if it does not fit."""
    scale, decided = of.devices_per_chip / GIB, outcome(of)
    fitting = [] if of.fits else [option for option in of.options if option.fits][:CHANGES]
    smallest = [] if of.fits else of.smallest
    status = PreflightStatus(
        outcome=decided,
        line=line(of, decided),
        stage=of.stage,
        peak_gib=_round(of.peak * scale),
        available_gib=_round(of.available * scale),
        **_time(of.estimate),
        programs=[PreflightProgram(name=p.name, stage=p.stage, peak_gib=_round(p.peak * scale)) for p in of.programs],
        largest=[f"{buffer.label} {buffer.bytes * scale:.1f} GiB" for buffer in of.largest[:BUFFERS]],
        changes=[_change(option) for option in fitting],
        smallest=[option.change for option in smallest],
        notes=[note[:300] for note in of.notes[:4]],
        versions=of.versions,
        key=key,
        remembered=remembered,
    )
    return next(small for small in _smaller(status) if len(small.model_dump_json(by_alias=True)) <= BYTES)


def outcome(of: Verdict) -> Outcome:
    """Return whether it fits, or Undecided without a decisive answer."""
    if of.fits:
        return "Fits"
    last: Stage = {one.name: one.stage for one in of.programs}.get(of.peak_during, "formula")
    is_doubted = last == "formula" or (last == "fast" and of.peak_during == TRAIN_STEP)
    return "Undecided" if is_doubted and of.peak <= HOPELESS * of.available else "DoesNotFit"


def line(of: Verdict, decided: Outcome) -> str:
    """Return `peak 29.8 of 95.7 GiB per chip on v5p-128 (64 chips); 13.1 s/step estimated`."""
    by = " by the formula, not compiled" if of.stage == "formula" else ""
    doubt = "; so near the limit that only the full compile could tell" if decided == "Undecided" else ""
    time = "" if of.estimate is None else f"; {of.estimate.seconds:.3g} s/step estimated"
    return f"{of.compared()} on {of.accelerator}{by}{time}{doubt}"


def _time(of: Estimate | None) -> dict[str, Any]:
    if of is None:
        return {}
    return {
        "seconds_per_step": _round(of.seconds),
        "tokens_per_second_per_chip": _round(of.tokens_per_second_per_chip),
        "chip_hours": None if of.chip_hours is None else _round(of.chip_hours),
    }


def _change(option: Option) -> PreflightChange:
    scale = option.devices_per_chip / GIB
    return PreflightChange(
        change=option.change,
        settings=", ".join(assignments(option.settings)),
        peak_gib=_round(option.peak * scale),
        available_gib=_round(option.available * scale),
    )


def assignments(settings: dict[str, Any]) -> list[str]:
    """Return settings in the form of `ptctl --set`: `training.microBatchSize=8`."""
    return list(_assigned("", settings))


def _assigned(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _assigned(f"{path}.{key}" if path else key, inner)
    else:
        yield f"{path}={'{}' if value == {} else value}"


def _smaller(status: PreflightStatus) -> Iterator[PreflightStatus]:
    """Yield smaller and smaller versions, without details that are available elsewhere."""
    yield status
    for fields in (("notes",), ("notes", "largest"), ("notes", "largest", "smallest", "programs")):
        yield status.model_copy(update={field: [] for field in fields})
    yield PreflightStatus(outcome=status.outcome, line=status.line[:500], stage=status.stage, key=status.key)


def _round(value: float) -> float:
    return float(f"{value:.4g}")
