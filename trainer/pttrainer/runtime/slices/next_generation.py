"""Which slices train next, and when: one pure decision over what the supervisors report.

A generation is the trainer's processes from one restart to the next. It is announced, started once all its members have
ended their earlier trainer, and replaced when a member is lost or its trainer ends. Then as many slices go on as are
complete and divide the batch; returned ones join after the run has had some quiet, at a checkpoint saved for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ptapi.failures import EXIT_CLASSES, FATAL_EXIT_CODES, REACTIONS, ExitCode, FailureClass
from ptapi.run_directory import Generation, Member

RESIZED = "Resized"
"""Key of `Generation.restarts` for restarts that let returned slices join."""
_IN_ORDER = (ExitCode.OK, ExitCode.PREEMPTED_SAVED)
Key = tuple[int, int]
"""A slice and the number of a process in it."""


@dataclass(frozen=True)
class Limits:
    """What the job allows. usable: numbers of slices that divide its batch; per_slice: processes of a slice."""

    job_uid: str
    slices: int
    minimum: int
    usable: tuple[int, ...]
    per_slice: int = 1
    max_restarts: int = 0


@dataclass(frozen=True)
class Report:
    """A supervisor's last report.

    is_alive: it changed lately. is_settled: if it is alive, it changed since a trainer of this generation ended.
    """

    member: Member
    is_alive: bool = True
    is_settled: bool = True


@dataclass(frozen=True)
class Timing:
    """What has passed by the keeper's clock.

    is_quiet: this generation has trained long enough for others to join; has_waited: long enough without any
    generation to begin without all slices; may_retry: the pause after an outage is over.
    """

    is_quiet: bool = False
    has_waited: bool = False
    may_retry: bool = True


def decide(now: Generation, reports: Mapping[Key, Report], limits: Limits, timing: Timing) -> Generation:
    """Return the generation as it should be; `now` itself if nothing changes."""
    if now.verdict is not None:
        return now
    if not now.slices:
        return _next(now, reports, limits, timing, cause="")
    members = _members(now, limits)
    ended = {key: code for key, token in members.items() if (code := _code(reports.get(key), token, now)) is not None}
    if ended.get((now.slices[0], 0)) == ExitCode.OK:
        return now.model_copy(update={"verdict": int(ExitCode.OK), "message": "done"})
    fatal = next((key for key, code in ended.items() if code in FATAL_EXIT_CODES), None)
    if fatal is not None:
        return _verdict(now, fatal, ended[fatal], reports)
    if any(_is_lost(reports.get(key), token) for key, token in members.items() if key not in ended):
        return _next(now, reports, limits, timing, FailureClass.HOST_ERROR)
    if not now.started:
        return _start(now, members, reports, limits, timing)
    if not ended:
        return _grow(now, reports, limits, timing)
    if all(code in _IN_ORDER for code in ended.values()):
        if len(ended) < len(members):  # the others are saving, or exporting
            return now
        return _next(now, reports, limits, timing, RESIZED if now.stopping else FailureClass.PREEMPTED)
    if not all(reports[key].is_settled for key in members):
        return now  # a trainer may have ended because another's host is gone, which shows only now
    return _after_failure(now, ended, reports, limits, timing)


def largest(limits: Limits, slices: int) -> int:
    """Return how many of so many slices can train; 0 if too few are there."""
    return max((count for count in limits.usable if limits.minimum <= count <= slices), default=0)


def complete_slices(reports: Mapping[Key, Report], limits: Limits) -> list[int]:
    """Return the slices of which every supervisor is alive and stays."""

    def is_there(key: Key) -> bool:
        report = reports.get(key)
        return report is not None and report.is_alive and not report.member.leaving

    return [s for s in range(limits.slices) if all(is_there((s, p)) for p in range(limits.per_slice))]


def _members(now: Generation, limits: Limits) -> dict[Key, str]:
    keys = [(s, p) for s in now.slices for p in range(limits.per_slice)]
    return dict(zip(keys, now.members, strict=True))


def _code(report: Report | None, token: str, now: Generation) -> int | None:
    """Return the exit code of a member's trainer of this generation; None if it has not ended."""
    if report is None or report.member.token != token or report.member.generation != now.number:
        return None
    return report.member.code if report.member.state == "ended" else None


def _is_lost(report: Report | None, token: str) -> bool:
    return report is None or report.member.token != token or not report.is_alive


def _start(
    now: Generation, members: Mapping[Key, str], reports: Mapping[Key, Report], limits: Limits, timing: Timing
) -> Generation:
    if any(reports[key].member.leaving for key in members):
        return _next(now, reports, limits, timing, FailureClass.PREEMPTED)
    is_ready = all(reports[key].member.generation == now.number for key in members)
    return now.model_copy(update={"started": True}) if is_ready else now


def _grow(now: Generation, reports: Mapping[Key, Report], limits: Limits, timing: Timing) -> Generation:
    more = largest(limits, len(complete_slices(reports, limits))) > len(now.slices)
    if now.stopping or not more or not timing.is_quiet:
        return now
    return now.model_copy(update={"stopping": True})


def _after_failure(
    now: Generation, ended: Mapping[Key, int], reports: Mapping[Key, Report], limits: Limits, timing: Timing
) -> Generation:
    own = {key: code for key, code in ended.items() if code not in _IN_ORDER}
    # A trainer whose peer ended ends with an unexpected error; one with a class of its own is the cause.
    key = min(own, key=lambda each: (EXIT_CLASSES.get(own[each]) in (None, FailureClass.UNKNOWN), each))
    kind = EXIT_CLASSES.get(own[key], FailureClass.UNKNOWN)
    restarts = _counted(now, kind)
    charged = sum(
        count for name, count in restarts.items() if name != RESIZED and REACTIONS[FailureClass(name)].charged
    )
    limit = REACTIONS[kind].limit
    is_spent = REACTIONS[kind].charged and charged > limits.max_restarts
    if is_spent or (limit is not None and restarts[kind] > limit):
        return _verdict(now, key, own[key], reports)
    return _next(now, reports, limits, timing, kind) if timing.may_retry else now


def _verdict(now: Generation, key: Key, code: int, reports: Mapping[Key, Report]) -> Generation:
    text = reports[key].member.message or f"the trainer ended with exit code {code}"
    known = code if code in EXIT_CLASSES else int(ExitCode.UNKNOWN)
    return now.model_copy(update={"verdict": known, "message": f"slice {key[0]}, process {key[1]}: {text}"})


def _counted(now: Generation, cause: str) -> dict[str, int]:
    return {**now.restarts, str(cause): now.restarts.get(str(cause), 0) + 1} if cause else now.restarts


def _next(now: Generation, reports: Mapping[Key, Report], limits: Limits, timing: Timing, cause: str) -> Generation:
    """Return the next generation, of no slices if too few are there; `now` if it is too early to tell."""
    there = complete_slices(reports, limits)
    members = _members(now, limits)
    staying = [
        s for s in there if all(members.get((s, p)) == reports[s, p].member.token for p in range(limits.per_slice))
    ]
    count = largest(limits, len(there))
    if count < limits.slices and not staying and not timing.has_waited:
        count = 0  # all begin anew, at slightly different times
    if count == 0 and not now.slices:
        return now
    chosen = sorted([*staying, *(s for s in there if s not in staying)][:count])
    return now.model_copy(
        update={
            "number": now.number + 1,
            "slices": chosen,
            "members": [reports[s, p].member.token for s in chosen for p in range(limits.per_slice)],
            "coordinator": reports[chosen[0], 0].member.address if chosen else "",
            "started": False,
            "stopping": False,
            "restarts": _counted(now, cause),
        }
    )
