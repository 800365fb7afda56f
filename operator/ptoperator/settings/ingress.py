"""How TensorBoards are reached from outside the cluster, as an administrator configures it. Pure.

TensorBoard has no authentication: the class and annotations add it (an identity-aware proxy, the ingress controller's
own authentication). Either an Ingress is created, or a route to an existing Gateway, whose listeners have class and
certificate.
"""

import json
from dataclasses import dataclass, field
from functools import cache

_ACCEPTED = (
    '{"domain": "tb.example.com", "className": "nginx", "annotations": {…}, "tlsSecret": "wildcard"}, or instead of '
    'class and secret "gateway": {"name": "shared", "namespace": "infra", "section": "https"}'
)


class IngressError(ValueError):
    """An invalid setting: says what is wrong and what is accepted."""


@dataclass(frozen=True)
class Gateway:
    """An existing Gateway. section: the name of a listener; empty: all of them."""

    name: str
    namespace: str = ""
    section: str = ""


@dataclass(frozen=True)
class IngressSettings:
    """The parsed setting.

    domain: the parent domain of each TensorBoard's host; empty: none is reached from outside. tls_secret: in the job's
    namespace. gateway: the route's parent, instead of an Ingress.
    """

    domain: str = ""
    class_name: str = ""
    annotations: dict[str, str] = field(default_factory=dict)
    tls_secret: str = ""
    gateway: Gateway | None = None


@cache
def parse(text: str) -> IngressSettings:
    """Parse JSON; an empty text is no ingress. Raises IngressError."""
    if not text:
        return IngressSettings()
    try:
        document = json.loads(text)
        _check(document, {"domain", "className", "annotations", "tlsSecret", "gateway"})
        gateway = _gateway(document.get("gateway") or {})
        if gateway and (document.get("className") or document.get("tlsSecret")):
            raise ValueError("className and tlsSecret are for an Ingress, but a gateway is named")
        annotations = {str(key): str(value) for key, value in (document.get("annotations") or {}).items()}
        return IngressSettings(
            str(document.get("domain") or ""),
            str(document.get("className") or ""),
            annotations,
            str(document.get("tlsSecret") or ""),
            gateway,
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise IngressError(f"{error}; accepted: {_ACCEPTED}") from None


def _gateway(document: dict[str, str]) -> Gateway | None:
    """Return None without a name, as in the chart's default."""
    _check(document, {"name", "namespace", "section"})
    return Gateway(**{key: str(value) for key, value in document.items()}) if document.get("name") else None


def _check(document: dict[str, object] | dict[str, str], known: set[str]) -> None:
    unknown = sorted(set(document) - known)
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is not a known key")
