"""Release the pools of a job that is finished, suspended or being deleted. Pure.

A healthy pool waits for the next job of its shape. Any other is deleted, as are pools of flex-start (their time runs
out) and all pools if none are kept.
"""

from datetime import datetime

from ptoperator.capacity.cloud import Cloud, CloudAction, DeletePool, Pool, PoolState, ReleasePool
from ptoperator.settings import Settings


def release(uid: str, cloud: Cloud, settings: Settings, now: datetime) -> tuple[CloudAction, ...]:
    """Return the actions on the pools that this job still holds, except those already being deleted."""
    return tuple(_release(pool, settings, now) for pool in cloud.changeable(uid))


def _release(pool: Pool, settings: Settings, now: datetime) -> CloudAction:
    is_kept = settings.pool_idle_seconds > 0 and pool.state is PoolState.RUNNING
    if is_kept and not pool.failures and not pool.is_flex:
        return ReleasePool(pool.name, pool.job_uid, int(now.timestamp()))
    return DeletePool(pool.name, pool.job_uid)
