"""kopf's connection from ours: one kubeconfig, one context, one identity for watches and all other calls."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import kopf

from ptkube.client import Kube
from ptkube.credentials import Credentials

_REFRESH = timedelta(minutes=10)  # tokens of service accounts and cloud logins live for an hour


def connection(kube: Kube) -> kopf.ConnectionInfo:
    """Return a connection. kopf asks for a new one when it expires or the API server answers 401."""
    access = kube.access
    credentials = Credentials(access)
    scheme, _, token = credentials.headers().get("Authorization", "").partition(" ")
    return kopf.ConnectionInfo(
        server=access.server,
        ca_data=access.ca_pem,
        insecure=not access.verify,
        scheme=scheme or None,
        token=token or None,
        certificate_data=credentials.cert_pem,
        private_key_data=credentials.key_pem,
        proxy_url=access.proxy_url,
        default_namespace=access.namespace,
        expiration=datetime.now(UTC) + _REFRESH if credentials.renewable else None,
    )
