"""Obtain a job's chips, and release them.

Everything that decides is pure: `provide` goes through spec.capacity, `release` returns pools, `find_orphans` finds
pools without a job. The only module that talks to a cloud is `gke`, behind `cloud.CloudProvider`.
"""

from ptoperator.capacity.attempts import open_attempt
from ptoperator.capacity.node_pools.pool_release import release
from ptoperator.capacity.provision import provide
from ptoperator.capacity.request import CapacityRequest, Decision

__all__ = ["CapacityRequest", "Decision", "open_attempt", "provide", "release"]
