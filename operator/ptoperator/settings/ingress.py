"""How TensorBoards are reached from outside the cluster, as an administrator states it. Pure.

TensorBoard asks nobody who they are: whatever stands before it (an identity-aware proxy, the ingress controller's own
authentication) is put there by class and annotations. Either an Ingress is made, or a route to a Gateway that is there,
whose listeners have class and certificate.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache

_ACCEPTED = (
    '{"domain": "tb.example.com", "className": "nginx", "annotations": {…}, "tlsSecret": "wildcard"}, or instead of '
    'class and secret "gateway": {"name": "shared", "namespace": "infra", "section": "https"}'
)


class IngressError(ValueError):
    """A setting that cannot be used: says what is wrong and what is accepted."""


@dataclass(frozen=True)
class Gateway:
    """A Gateway that is there. section: the name of a listener; empty: all of them."""

    name: str
    namespace: str = ""
    section: str = ""


@dataclass(frozen=True)
class IngressSettings:
    """domain: each TensorBoard's host is below it; empty: none is reached from outside. tls_secret: of the job's
    namespace. gateway: what a route leads from, in place of an Ingress."""

    domain: str = ""
    class_name: str = ""
    annotations: dict[str, str] = field(default_factory=dict)
    tls_secret: str = ""
    gateway: Gateway | None = None


@cache
def parse(text: str) -> IngressSettings:
    """From JSON; nothing for an empty text."""
    if not text:
        return IngressSettings()
    try:
        found = json.loads(text)
        _check(found, {"domain", "className", "annotations", "tlsSecret", "gateway"})
        gateway = _gateway(found.get("gateway") or {})
        if gateway and (found.get("className") or found.get("tlsSecret")):
            raise ValueError("className and tlsSecret are an Ingress's, and a gateway is named")
        annotations = {str(key): str(value) for key, value in (found.get("annotations") or {}).items()}
        return IngressSettings(
            str(found.get("domain") or ""),
            str(found.get("className") or ""),
            annotations,
            str(found.get("tlsSecret") or ""),
            gateway,
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise IngressError(f"{error}; accepted: {_ACCEPTED}") from None


def _gateway(found: dict[str, str]) -> Gateway | None:
    """Nothing for one without a name, as the chart's default is."""
    _check(found, {"name", "namespace", "section"})
    return Gateway(**{key: str(value) for key, value in found.items()}) if found.get("name") else None


def _check(found: dict[str, object] | dict[str, str], known: set[str]) -> None:
    unknown = sorted(set(found) - known)
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is not known")
