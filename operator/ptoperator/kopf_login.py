"""kopf's connection: one kubeconfig, one context, one identity for its watches and our calls."""

from typing import Any

import kopf

from ptkube.client import Kube


def connection(kube: Kube, **login: Any) -> kopf.ConnectionInfo | None:
    """Return a connection: kopf asks for a new one when the API server answers 401.

    In a pod kopf logs in by itself. Elsewhere it would read the default kubeconfig's current context, whichever was
    chosen for our calls, and ignore its proxy.
    """
    access = kube.access
    if not access.context:
        return kopf.login_via_client(**login)
    scheme, _, token = access.authorization.partition(" ")
    return kopf.ConnectionInfo(
        server=access.server,
        ca_data=access.ca_pem,
        insecure=not access.configuration.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_data=access.cert_pem,
        private_key_data=access.key_pem,
        proxy_url=access.configuration.proxy,
        default_namespace=access.namespace,
    )
