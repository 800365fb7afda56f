"""Decide what to do about one JobSet: a pure function from what is observed to what to write.

Checks in the real controller's order: finished, old attempt deleted, failed, succeeded; then create, suspend or resume.
"""

import copy
from dataclasses import dataclass, field

from ptkube.objects import is_deleting
from ptkube.resources import Manifest
from ptkube.timestamps import seconds_between
from ptlocal import jobset_names
from ptlocal.controllers.jobset import build
from ptlocal.controllers.jobset.children import (
    Children,
    is_suspended,
    replicated_job_of,
    replicated_jobs_status,
    sort_children,
)
from ptlocal.controllers.jobset.conditions import COMPLETED, FAILED, RESTARTING, EventNote, StatusDraft
from ptlocal.controllers.jobset.defaults import with_defaults
from ptlocal.controllers.jobset.failure_policy import apply_failure_policy


@dataclass
class Decision:
    """Writes, in the order the controller makes them; `status` is None if unchanged."""

    delete_jobs: list[Manifest] = field(default_factory=list)
    create_service: Manifest | None = None
    create_jobs: list[Manifest] = field(default_factory=list)
    suspend_jobs: list[Manifest] = field(default_factory=list)
    resume_jobs: list[tuple[Manifest, Manifest]] = field(default_factory=list)  # Job, template to merge from
    status: Manifest | None = None
    events: list[EventNote] = field(default_factory=list)
    delete_jobset: bool = False
    again_s: float | None = None


def is_ours(jobset: Manifest) -> bool:
    """Return True if the JobSet is managed by the built-in controller."""
    return (jobset["spec"].get("managedBy") or jobset_names.CONTROLLER) == jobset_names.CONTROLLER


def decide(observed: Manifest, jobs: list[Manifest], *, has_service: bool, now: str) -> Decision:
    """Return the decision. `jobs` are those whose controller is this JobSet, of any restart attempt."""
    if is_deleting(observed) or not is_ours(observed):
        return Decision()
    jobset = with_defaults(observed)
    children = sort_children(jobset, jobs)
    draft = StatusDraft(copy.deepcopy(jobset["status"]), now)
    draft.status["replicatedJobsStatus"] = replicated_jobs_status(jobset, children)
    decision = Decision()
    _reconcile(jobset, children, draft, decision, has_service)
    if draft.status != jobset["status"]:
        decision.status = draft.status
        decision.events = draft.events
    return decision


def _reconcile(jobset: Manifest, children: Children, draft: StatusDraft, decision: Decision, has_service: bool) -> None:
    if draft.is_true(COMPLETED) or draft.is_true(FAILED):
        decision.delete_jobs = _not_yet_deleted(children.active)
        _expire(jobset, draft, decision)
        return
    decision.delete_jobs = _not_yet_deleted(children.previous)
    suspended = bool(jobset["spec"]["suspend"])
    if not suspended and _all_ready(jobset, draft):
        draft.set(RESTARTING, "False", "JobsReady", "all jobs are ready")
    if children.failed:
        apply_failure_policy(jobset, children.failed, draft)
        return
    if _succeeded(jobset, children):
        draft.complete()
        return
    if jobset["spec"]["network"]["enableDNSHostnames"] and not has_service:
        decision.create_service = build.headless_service(jobset)
    _create_missing(jobset, children, draft, decision)
    if suspended:
        decision.suspend_jobs = [job for job in children.active if not is_suspended(job)]
        draft.suspend()
    else:
        _resume(jobset, children, draft, decision)


def _expire(jobset: Manifest, draft: StatusDraft, decision: Decision) -> None:
    ttl_s = jobset["spec"].get("ttlSecondsAfterFinished")
    if ttl_s is None:
        return
    finished = next(c for c in draft.status["conditions"] if c["type"] in (COMPLETED, FAILED) and c["status"] == "True")
    remaining_s = ttl_s - seconds_between(finished["lastTransitionTime"], draft.now)
    if remaining_s <= 0:
        decision.delete_jobset = True
    else:
        decision.again_s = remaining_s


def _create_missing(jobset: Manifest, children: Children, draft: StatusDraft, decision: Decision) -> None:
    spec = jobset["spec"]
    blocking = (spec.get("failurePolicy") or {}).get("restartStrategy") == "BlockingRecreate"
    if blocking and children.previous:
        return
    existing = children.names()
    in_order = _in_order(jobset) and not spec["suspend"]
    for replicated in spec["replicatedJobs"]:
        if not _dependencies_met(jobset, replicated, draft):
            continue
        if in_order and _all_started(replicated, draft):
            continue
        for index in range(int(replicated["replicas"])):
            if jobset_names.job_name(jobset["metadata"]["name"], replicated["name"], index) not in existing:
                decision.create_jobs.append(build.child_job(jobset, replicated, index))
        if in_order:
            draft.startup_in_progress()
            return
    if in_order:
        draft.startup_completed()


def _resume(jobset: Manifest, children: Children, draft: StatusDraft, decision: Decision) -> None:
    in_order = _in_order(jobset)
    for replicated in jobset["spec"]["replicatedJobs"]:
        if not _dependencies_met(jobset, replicated, draft):
            continue
        if in_order and _all_started(replicated, draft):
            continue
        decision.resume_jobs += [
            (job, replicated["template"]["spec"]["template"])
            for job in children.active
            if replicated_job_of(job) == replicated["name"] and is_suspended(job)
        ]
        if in_order:
            return
    draft.resume()


def _dependencies_met(jobset: Manifest, replicated: Manifest, draft: StatusDraft) -> bool:
    replicas = {job["name"]: int(job["replicas"]) for job in jobset["spec"]["replicatedJobs"]}
    rows = {row["name"]: row for row in draft.status["replicatedJobsStatus"]}
    for dependency in replicated.get("dependsOn") or []:
        row = rows[dependency["name"]]
        reached = row["succeeded"] if dependency["status"] == "Complete" else _started(row)
        if reached != replicas[dependency["name"]]:
            return False
    return True


def _succeeded(jobset: Manifest, children: Children) -> bool:
    policy = jobset["spec"]["successPolicy"]
    targets = policy.get("targetReplicatedJobs") or [job["name"] for job in jobset["spec"]["replicatedJobs"]]
    done = sum(replicated_job_of(job) in targets for job in children.successful)
    if policy["operator"] == "Any":
        return done >= 1
    wanted = sum(int(job["replicas"]) for job in jobset["spec"]["replicatedJobs"] if job["name"] in targets)
    return done > 0 and done >= wanted


def _all_ready(jobset: Manifest, draft: StatusDraft) -> bool:
    wanted = sum(int(job["replicas"]) for job in jobset["spec"]["replicatedJobs"])
    ready = sum(int(row["ready"] + row["succeeded"]) for row in draft.status["replicatedJobsStatus"])
    return wanted == ready


def _in_order(jobset: Manifest) -> bool:
    return bool(jobset["spec"]["startupPolicy"]["startupPolicyOrder"] == "InOrder")


def _all_started(replicated: Manifest, draft: StatusDraft) -> bool:
    row = next(row for row in draft.status["replicatedJobsStatus"] if row["name"] == replicated["name"])
    return _started(row) == int(replicated["replicas"])


def _started(row: Manifest) -> int:
    return int(row["failed"] + row["ready"] + row["succeeded"])


def _not_yet_deleted(jobs: list[Manifest]) -> list[Manifest]:
    return [job for job in jobs if not is_deleting(job)]
