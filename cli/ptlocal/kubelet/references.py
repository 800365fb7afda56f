"""Objects that a pod refers to, fetched from the API server when its containers start."""

from ptkube.client import Kube, NotFound
from ptkube.resources import CONFIGMAPS, SECRETS, SERVICE_ACCOUNTS, Manifest
from ptlocal.kubelet.container.value_sources import NotReady, References

_TOKEN_S = 3600


def references(kube: Kube, namespace: str) -> References:
    """Return functions that fetch the namespace's objects and tokens."""

    def find(kind: str, name: str) -> Manifest | None:
        try:
            return kube.get(SECRETS if kind == "Secret" else CONFIGMAPS, name, namespace)
        except NotFound:
            return None

    def token(pod: Manifest, projection: Manifest) -> str:
        account = pod["spec"].get("serviceAccountName") or "default"
        try:
            response = kube.create(SERVICE_ACCOUNTS, _token_request(pod, projection), name=account, subresource="token")
        except NotFound as error:
            raise NotReady(f"no token for service account {account}: {error.message}") from error
        return str(response["status"]["token"])

    return References(find, token)


def _token_request(pod: Manifest, projection: Manifest) -> Manifest:
    meta = pod["metadata"]
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "metadata": {"namespace": meta["namespace"]},
        "spec": {
            "audiences": [projection["audience"]] if projection.get("audience") else [],
            "expirationSeconds": projection.get("expirationSeconds") or _TOKEN_S,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]},
        },
    }
