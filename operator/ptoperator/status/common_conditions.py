"""The conditions that every job with a valid spec has, whatever its phase. Pure."""

from dataclasses import replace

from ptapi.conditions import ConditionType, Reason
from ptapi.status import CapacityStatus
from ptoperator.capacity import open_attempt
from ptoperator.observe.state import Observed
from ptoperator.render import Layout
from ptoperator.settings import Settings
from ptoperator.status.builder import ConditionUpdate, ConditionUpdates, StatusUpdate


def with_common_conditions(layout: Layout, settings: Settings, update: StatusUpdate, state: Observed) -> StatusUpdate:
    """Add the conditions of every job whose spec is valid."""
    what = f"{layout.job.spec.label} on {layout.described}{_file_hint(layout, settings)}"
    conditions: ConditionUpdates = {ConditionType.VALIDATED: ConditionUpdate(True, Reason.ACCEPTED, what)}
    if layout.preflight == "Skip":
        conditions[ConditionType.PREFLIGHTED] = _preflight_skipped(layout, state)
    if not layout.job.spec.queue:
        conditions[ConditionType.QUOTA_RESERVED] = _without_queue(update.capacity or state.status.capacity)
    return replace(update, conditions={**conditions, **update.conditions})


def _preflight_skipped(layout: Layout, state: Observed) -> ConditionUpdate:
    if not layout.job.spec.preflight:
        return ConditionUpdate(False, Reason.PREFLIGHT_SKIPPED, "CPU devices need no preflight")
    condition = state.status.condition(ConditionType.PREFLIGHTED)
    if condition is not None:
        return ConditionUpdate(False, Reason(condition.reason), condition.message)
    why, estimate = "spec.preflight is Skip", state.preflight.estimate
    if estimate is None:
        return ConditionUpdate(False, Reason.PREFLIGHT_SKIPPED, why)
    if estimate.fits:
        return ConditionUpdate(False, Reason.PREFLIGHT_SKIPPED, f"{why}; the formula estimates {estimate.message}")
    message = f"the formula estimates {estimate.message}; {why}, so the job continues"
    return ConditionUpdate(False, Reason.DOES_NOT_FIT, message)


def _without_queue(capacity: CapacityStatus) -> ConditionUpdate:
    """Return QuotaReserved of a job without a Kueue queue: its turn at contended chips, if there was one."""
    attempt = open_attempt(capacity)
    if attempt is None or attempt.granted is None:
        return ConditionUpdate(True, Reason.NO_QUEUE, "the job names no queue")
    return ConditionUpdate(True, Reason.ADMITTED, f"its turn for {attempt.option} came at {attempt.granted}")


def _file_hint(layout: Layout, settings: Settings) -> str:
    """Warn about a `file://` run directory that no volume covers: it vanishes with its pod."""
    uri = layout.job.spec.output.uri
    path = uri.removeprefix("file://")
    covered = any(
        path == v.mount_path or path.startswith(v.mount_path.rstrip("/") + "/") for v in layout.job.spec.volumes
    )
    if settings.shared_filesystem or not uri.startswith("file://") or covered:
        return ""
    return f"; hint: output.uri {uri} is inside the pod and lost with it; mount a volume that covers it (spec.volumes)"
