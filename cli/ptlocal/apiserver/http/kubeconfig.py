"""The kubeconfig that points kubectl and every other client at this server."""

import base64
from pathlib import Path

import yaml

from ptlocal.apiserver.http.tls import Credentials, write_private

NAME = "posttrain-local"


def write_kubeconfig(path: Path, port: int, credentials: Credentials) -> None:
    """Write the kubeconfig."""
    ca = base64.b64encode(credentials.ca.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": NAME, "cluster": {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": ca}}
        ],
        "users": [{"name": NAME, "user": {"token": credentials.token}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": "default"}}],
        "current-context": NAME,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, yaml.safe_dump(config, sort_keys=False).encode())
