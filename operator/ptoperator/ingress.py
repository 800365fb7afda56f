"""How TensorBoards are reached from outside the cluster, as an administrator states it. Pure.

TensorBoard asks nobody who they are: whatever stands before it (an identity-aware proxy, the ingress controller's own
authentication) is put there by class and annotations. Left out: Gateways; their routes need rights of their own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache

_ACCEPTED = '{"domain": "tb.example.com", "className": "nginx", "annotations": {…}, "tlsSecret": "wildcard"}'


class IngressError(ValueError):
    """A setting that cannot be used: says what is wrong and what is accepted."""


@dataclass(frozen=True)
class IngressSettings:
    """domain: each TensorBoard's host is below it; empty: no Ingress is made. tls_secret: of the job's namespace."""

    domain: str = ""
    class_name: str = ""
    annotations: dict[str, str] = field(default_factory=dict)
    tls_secret: str = ""


@cache
def parse(text: str) -> IngressSettings:
    """From JSON; nothing for an empty text."""
    if not text:
        return IngressSettings()
    try:
        found = json.loads(text)
        unknown = set(found) - {"domain", "className", "annotations", "tlsSecret"}
        if unknown:
            raise ValueError(f"{', '.join(sorted(unknown))} is not known")
        annotations = {str(key): str(value) for key, value in (found.get("annotations") or {}).items()}
        return IngressSettings(
            str(found.get("domain") or ""),
            str(found.get("className") or ""),
            annotations,
            str(found.get("tlsSecret") or ""),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise IngressError(f"{error}; accepted: {_ACCEPTED}") from None
