"""Giving chips back: pools of a job that is over, suspended or going. Pure.

A pool that runs well waits for the next job of its shape; any other is deleted, as is one that flex-start made (its
time runs out) and every one where nothing is to be kept.
"""

from __future__ import annotations

from datetime import datetime

from ptoperator.capacity.cloud import Cloud, CloudAction, DeletePool, Pool, PoolState, ReleasePool
from ptoperator.settings import Settings


def release(uid: str, cloud: Cloud, settings: Settings, now: datetime) -> tuple[CloudAction, ...]:
    """What to do about the pools that this job still holds; nothing for those that go already."""
    return tuple(_release(pool, settings, now) for pool in cloud.changeable(uid))


def _release(pool: Pool, settings: Settings, now: datetime) -> CloudAction:
    is_kept = settings.pool_idle_seconds > 0 and pool.state is PoolState.RUNNING
    if is_kept and not pool.troubles and not pool.is_flex:
        return ReleasePool(pool.name, pool.job_uid, int(now.timestamp()))
    return DeletePool(pool.name, pool.job_uid)
