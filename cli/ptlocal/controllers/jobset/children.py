"""The child Jobs of a JobSet, sorted by state, and the counts in its status."""

from dataclasses import dataclass, field

from ptkube.objects import holds, label
from ptkube.resources import Manifest
from ptlocal import jobset_names


@dataclass
class Children:
    """Child Jobs by state. `previous` are of an earlier restart attempt and being deleted; the rest are current."""

    active: list[Manifest] = field(default_factory=list)
    successful: list[Manifest] = field(default_factory=list)
    failed: list[Manifest] = field(default_factory=list)
    previous: list[Manifest] = field(default_factory=list)

    def names(self) -> set[str]:
        """Return the names of the current attempt's Jobs."""
        jobs = [*self.active, *self.successful, *self.failed, *self.previous]
        return {str(job["metadata"]["name"]) for job in jobs}


def sort_children(jobset: Manifest, jobs: list[Manifest]) -> Children:
    """Sort the Jobs by state."""
    children = Children()
    attempt = int(jobset["status"]["restarts"])
    for job in jobs:
        if int(label(job, jobset_names.RESTART_ATTEMPT) or 0) < attempt:
            children.previous.append(job)
        elif holds(job, "Failed"):
            children.failed.append(job)
        elif holds(job, "Complete"):
            children.successful.append(job)
        else:
            children.active.append(job)
    return children


def replicated_job_of(job: Manifest) -> str:
    """Return the name of the Job's replicated Job."""
    return label(job, jobset_names.REPLICATED_JOB)


def is_suspended(job: Manifest) -> bool:
    """Return True if the Job is suspended."""
    return bool(job["spec"].get("suspend"))


def replicated_jobs_status(jobset: Manifest, children: Children) -> list[Manifest]:
    """Return the status row of each replicated Job, in spec order."""
    rows = {
        replicated["name"]: {
            "name": replicated["name"],
            "ready": 0,
            "succeeded": 0,
            "failed": 0,
            "active": 0,
            "suspended": 0,
        }
        for replicated in jobset["spec"]["replicatedJobs"]
    }
    for job in children.active:
        row = rows.get(replicated_job_of(job))
        if row is None:
            continue
        status = job.get("status") or {}
        row["ready"] += _all_pods_ready(job)
        row["active"] += int(status.get("active") or 0) > 0
        row["suspended"] += is_suspended(job)
    for kind, jobs in (("succeeded", children.successful), ("failed", children.failed)):
        for job in jobs:
            if replicated_job_of(job) in rows:
                rows[replicated_job_of(job)][kind] += 1
    return list(rows.values())


def _all_pods_ready(job: Manifest) -> bool:
    spec, status = job["spec"], job.get("status") or {}
    wanted = int(spec.get("parallelism") if spec.get("parallelism") is not None else 1)
    if spec.get("completions") is not None:
        wanted = min(wanted, int(spec["completions"]))
    return int(status.get("succeeded") or 0) + int(status.get("ready") or 0) >= wanted
