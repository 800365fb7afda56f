"""How long a run may be silent: one rule for the trainer's own watchdog and the operator, who looks from outside."""

from __future__ import annotations

from ptapi.run_directory import Stage

MIN_LIMIT_S = 600.0
MEDIANS = 5
"""Without a limit of the job's own, a step may take the larger of the first and so many typical steps."""
STAGE_LIMITS_S: dict[Stage, float] = {
    "loading": 4 * 3600.0,
    "restoring": 2 * 3600.0,
    "compiling": 2 * 3600.0,
    "exporting": 2 * 3600.0,
}
OTHER_LIMIT_S = 3600.0
"""Of evaluating and saving."""


def limit_s(stage: Stage, typical_s: float | None, asked: float | None) -> float:
    """Seconds without an event after which this is a hang. typical_s: what a step takes, None before the first;
    asked: `runPolicy.hangTimeoutSeconds`."""
    if stage == "done":
        return float("inf")
    if stage != "training":
        return max(STAGE_LIMITS_S.get(stage, OTHER_LIMIT_S), asked or 0.0)
    if asked is not None:
        return asked
    if typical_s is None:  # the first step of a rollout compiles, too
        return STAGE_LIMITS_S["compiling"]
    return max(MIN_LIMIT_S, MEDIANS * typical_s)
