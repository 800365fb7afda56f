"""Find orphaned node pools: the last line of defence behind finalizers and reconcile. Pure.

The pools must be listed before the jobs: a job exists before its pools, so a listed pool without a job in the later
list has none. Pools of namespaces that this operator does not serve belong to another operator.
"""

from collections.abc import Sequence
from datetime import datetime

from ptapi.conditions import Phase
from ptoperator.capacity.attempts import open_attempt
from ptoperator.capacity.cloud import DeletePool, Pool, PoolState
from ptoperator.job import JobObject
from ptoperator.settings import Settings


def find_orphans(
    pools: Sequence[Pool], jobs: Sequence[JobObject], namespaces: Sequence[str], settings: Settings, now: datetime
) -> list[tuple[DeletePool, str]]:
    """Return the pools to delete, and why. namespaces: those served; none: all."""
    by_uid = {job.uid: job for job in jobs}
    listed = {pool.name for job in jobs for pool in job.status.capacity.node_pools}
    orphans: list[tuple[DeletePool, str]] = []
    for pool in pools:
        if pool.state is PoolState.STOPPING or (namespaces and pool.namespace not in namespaces):
            continue
        if not pool.job_uid and pool.name in listed:  # somebody took the label away under the job
            continue
        why = _why(pool, by_uid.get(pool.job_uid), settings, now)
        if why:
            orphans.append((DeletePool(pool.name, pool.job_uid), why))
    return orphans


def _why(pool: Pool, job: JobObject | None, settings: Settings, now: datetime) -> str:
    if not pool.job_uid:
        idle_s = now.timestamp() - pool.idle_since
        return f"idle for {idle_s:.0f} seconds" if idle_s >= settings.pool_idle_seconds else ""
    if job is None:
        return f"its job {pool.job_uid} is gone"
    return "its job does not list it" if _is_unknown(pool, job) else ""


def _is_unknown(pool: Pool, job: JobObject) -> bool:
    """Return True if the job must list all its pools by now, and does not list this one.

    A job that still obtains chips may not have listed them yet: a create that seemed lost may succeed late.
    """
    status, attempt = job.status, open_attempt(job.status.capacity)
    has_chips = attempt is not None and attempt.ready is not None
    is_waiting = attempt is None and status.phase is Phase.QUEUED
    is_settled = has_chips or is_waiting or status.phase.is_terminal or status.phase is Phase.SUSPENDED
    return is_settled and all(each.name != pool.name for each in status.capacity.node_pools)
