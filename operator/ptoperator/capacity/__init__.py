"""How a job gets its chips, and how it lets go of them.

Everything that decides is pure: `provide` goes through spec.capacity, `release` gives pools back, `sweep` finds what
nobody holds. The only module that talks to a cloud is `gke`, behind `cloud.CloudProvider`.
"""

from __future__ import annotations

from ptoperator.capacity.attempts import is_open, uses_pools
from ptoperator.capacity.pool_release import release
from ptoperator.capacity.provision import provide
from ptoperator.capacity.request import Asked, Decision

__all__ = ["Asked", "Decision", "is_open", "provide", "release", "uses_pools"]
