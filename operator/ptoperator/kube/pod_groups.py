"""Find out whether the API server serves PodGroups, Kubernetes' own gang scheduling. Once, at start.

`POSTTRAIN_POD_GROUPS=auto` asks; a version, or `never`, does not. Left out: whether the scheduler's feature gate is on,
which nobody can ask; without it a PodGroup has no effect.
"""

import logging

from ptkube.client import Kube
from ptkube.errors import ApiError, NotFound
from ptkube.resources import POD_GROUPS

logger = logging.getLogger(__name__)

AUTO, NEVER = "auto", "never"


def resolved(choice: str, kube: Kube) -> str:
    """Return the version of PodGroups to make, or `never`; choice: the setting."""
    if choice != AUTO:
        return choice
    version = served_version(kube)
    if version:
        logger.info("pods of one job are scheduled together, by PodGroups (%s)", version)
    return version or NEVER


def served_version(kube: Kube) -> str:
    """Return the newest version of PodGroups that is served; empty if none is, or nobody can tell."""
    return next((each for each in POD_GROUPS if _is_served(kube, each)), "")


def _is_served(kube: Kube, version: str) -> bool:
    served = POD_GROUPS[version]
    try:
        kinds = kube.request("GET", f"/apis/{served.group}/{version}").get("resources") or []
    except NotFound:
        return False
    except ApiError as error:
        logger.warning("whether PodGroups are served is unknown, so none are made: %s", error)
        return False
    return any(each["name"] == served.plural for each in kinds)
