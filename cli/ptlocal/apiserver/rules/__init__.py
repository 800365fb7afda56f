"""The server's rules for built-in kinds beyond their schema: defaults, immutable fields, cross-field checks.

One file per kind (or per few small ones) and one plain table. Custom resources need none: their schema has everything.
Left out: everything that nothing in this project relies on; a real API server checks far more of a pod.
"""

from ptlocal.apiserver.rules import crds, jobs, minor_kinds, namespaces, pods, services
from ptlocal.apiserver.rules.base import NO_RULES, Rules

__all__ = ["Rules", "rules_of"]

_TABLE: dict[str, Rules] = {
    "/pods": pods.RULES,
    "/services": services.RULES,
    "/namespaces": namespaces.RULES,
    "/secrets": minor_kinds.SECRETS,
    "/configmaps": minor_kinds.CONFIGMAPS,
    "/events": minor_kinds.EVENTS,
    "/persistentvolumeclaims": minor_kinds.CLAIMS,
    "batch/jobs": jobs.RULES,
    "apps/deployments": minor_kinds.DEPLOYMENTS,
    "scheduling.k8s.io/priorityclasses": minor_kinds.PRIORITY_CLASSES,
    "apiextensions.k8s.io/customresourcedefinitions": crds.RULES,
}


def rules_of(storage_key: str) -> Rules:
    """Return the rules of a kind."""
    return _TABLE.get(storage_key, NO_RULES)
