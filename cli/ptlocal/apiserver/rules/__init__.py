"""The server's rules for built-in kinds beyond their schema: defaults, immutable fields, cross-field checks.

One file per kind (or per few small ones) and one plain table. Custom resources need none: their schema has everything.
Left out: everything that nothing in this project relies on; a real API server checks far more of a pod.
"""

from ptlocal.apiserver.rules import crds, jobs, namespaces, others, pods, services
from ptlocal.apiserver.rules.base import NO_RULES, Rules

__all__ = ["Rules", "rules_of"]

_TABLE: dict[str, Rules] = {
    "/pods": pods.RULES,
    "/services": services.RULES,
    "/namespaces": namespaces.RULES,
    "/secrets": others.SECRETS,
    "/configmaps": others.CONFIGMAPS,
    "/events": others.EVENTS,
    "/persistentvolumeclaims": others.CLAIMS,
    "batch/jobs": jobs.RULES,
    "apps/deployments": others.DEPLOYMENTS,
    "scheduling.k8s.io/priorityclasses": others.PRIORITY_CLASSES,
    "apiextensions.k8s.io/customresourcedefinitions": crds.RULES,
}


def rules_of(storage_key: str) -> Rules:
    """Return the rules of a kind."""
    return _TABLE.get(storage_key, NO_RULES)
