"""The hang timeout: one rule for the trainer's own watchdog and for the operator, which observes from outside."""

from ptapi.run_directory import Stage

MIN_LIMIT_S = 600.0
TYPICAL_STEPS = 5
"""Without a configured limit, a step may take MIN_LIMIT_S or this many typical steps, whichever is larger."""
STAGE_LIMITS_S: dict[Stage, float] = {
    "loading": 4 * 3600.0,
    "restoring": 2 * 3600.0,
    "compiling": 2 * 3600.0,
    "exporting": 2 * 3600.0,
}
OTHER_LIMIT_S = 3600.0
"""Limit for evaluating and saving."""


def limit_s(stage: Stage, typical_s: float | None, configured_s: float | None) -> float:
    """Return the seconds without an event after which the run counts as hanging.

    typical_s: typical step time, None before the first step; configured_s: `runPolicy.hangTimeoutSeconds`.
    """
    if stage == "done":
        return float("inf")
    if stage != "training":
        return max(STAGE_LIMITS_S.get(stage, OTHER_LIMIT_S), configured_s or 0.0)
    if configured_s is not None:
        return configured_s
    if typical_s is None:  # the first step of a rollout also compiles
        return STAGE_LIMITS_S["compiling"]
    return max(MIN_LIMIT_S, TYPICAL_STEPS * typical_s)
