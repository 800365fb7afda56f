"""Namespaces: the name label, and the `kubernetes` finalizer until one is empty (namespace_finalizer.py)."""

from ptlocal.apiserver.rules.base import Manifest, Rules

NAME_LABEL = "kubernetes.io/metadata.name"


def _default(namespace: Manifest) -> None:
    meta = namespace["metadata"]
    meta["labels"] = {**(meta.get("labels") or {}), NAME_LABEL: meta["name"]}


def _create(namespace: Manifest) -> None:
    namespace["spec"] = {"finalizers": ["kubernetes"]}
    namespace["status"] = {"phase": "Active"}


RULES = Rules(default=_default, create=_create)
