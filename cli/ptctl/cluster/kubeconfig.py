"""How kubectl and ptctl reach a cluster on GKE: its address, its certificate, and the user's credentials."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from ptctl.cluster.cloud.gke import ClusterView
from ptctl.cluster.cloud.settings import CloudSettings
from ptctl.errors import CliError
from ptkube.client import Kube
from ptkube.resources import Manifest

PLUGIN = "gke-gcloud-auth-plugin"
_INSTALL_HINT = "pip install 'posttrain[cli]', or install gke-gcloud-auth-plugin"


def context_name(project: str, cluster: ClusterView) -> str:
    """Return the name that gcloud gives to the cluster's context."""
    return f"gke_{project}_{cluster.location}_{cluster.name}"


def address(cluster: ClusterView, *, by_dns: bool | None = None) -> Manifest:
    """Return the cluster entry of a kubeconfig. Raises CliError.

    by_dns: its name instead of its IP address; None: where it has no public address.
    """
    endpoints = cluster.raw.control_plane_endpoints_config
    dns = str(endpoints.dns_endpoint_config.endpoint)
    by_ip = str(cluster.raw.endpoint)
    is_private = bool(by_ip) and not endpoints.ip_endpoints_config.enable_public_endpoint and bool(dns)
    use_dns = (is_private or not by_ip) if by_dns is None else by_dns
    chosen = dns if use_dns else by_ip
    if not chosen:
        raise CliError(
            f"cluster {cluster.name} is {cluster.state} and has no {'DNS name' if use_dns else 'address'} yet",
            "wait until it is RUNNING: `ptctl cluster describe`",
        )
    # a DNS name has a certificate that every machine trusts
    authority = {} if use_dns else {"certificate-authority-data": cluster.raw.master_auth.cluster_ca_certificate}
    return {"server": f"https://{chosen}", **authority}


def exec_user() -> Manifest:
    """Return the user entry: a plugin that fetches tokens, gcloud's where it is installed, else ptctl itself."""
    if shutil.which(PLUGIN):
        command, arguments = PLUGIN, []
    else:
        command, arguments = shutil.which("ptctl") or sys.executable, ["cluster", "token"]
        arguments = arguments if command != sys.executable else ["-m", "ptctl", *arguments]
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "command": command,
            "args": arguments,
            "installHint": _INSTALL_HINT,
            "provideClusterInfo": True,
            "interactiveMode": "Never",
        }
    }


def kube_of(settings: CloudSettings, cluster: ClusterView) -> Kube:
    """Return a client of the cluster with a token of this moment."""
    config = document("cluster", address(cluster), {"token": settings.token()})
    with tempfile.TemporaryDirectory(prefix="ptctl-") as folder:
        path = Path(folder) / "config"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))
        return Kube.load(str(path))


def document(name: str, cluster: Manifest, user: Manifest) -> Manifest:
    """Return a kubeconfig with one context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def kubeconfig_path(flag: str | None) -> Path:
    """Return the file that gcloud would write: the flag's, the first of KUBECONFIG, or ~/.kube/config."""
    listed = [each for each in os.environ.get("KUBECONFIG", "").split(os.pathsep) if each]
    return Path(flag or next(iter(listed), Path.home() / ".kube" / "config")).expanduser()


def merge_into(path: Path, config: Manifest, namespace: str | None = None) -> None:
    """Add the context to a kubeconfig and make it the current one. Raises CliError for a file that is no kubeconfig.

    Other contexts stay; the file is never half written, and only its owner reads it.
    """
    path = path.resolve()  # a link stays a link
    merged = _merged(_read(path), config, namespace)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # readable by its owner alone
    try:
        with os.fdopen(handle, "w") as file:
            yaml.safe_dump(merged, file, sort_keys=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _read(path: Path) -> dict[str, Any]:
    try:
        existing = yaml.safe_load(path.read_text()) if path.exists() else None
    except yaml.YAMLError as error:
        raise CliError(f"{path}: not YAML, so it is left as it is", "--kubeconfig PATH writes another file") from error
    existing = {} if existing is None else existing
    if not isinstance(existing, dict) or any(not isinstance(existing.get(key) or [], list) for key in _LISTS):
        raise CliError(f"{path}: not a kubeconfig, so it is left as it is", "--kubeconfig PATH writes another file")
    return existing


_LISTS = ("clusters", "users", "contexts")


def _merged(existing: dict[str, Any], config: Manifest, namespace: str | None) -> Manifest:
    name = config["current-context"]
    merged = {"apiVersion": "v1", "kind": "Config", **existing, "current-context": name}
    for key in _LISTS:
        merged[key] = [each for each in existing.get(key) or [] if each.get("name") != name] + config[key]
    context = merged["contexts"][-1]["context"]
    before: Manifest = next((each for each in existing.get("contexts") or [] if each.get("name") == name), {})
    kept = namespace or (before.get("context") or {}).get("namespace")
    if kept:
        context["namespace"] = kept
    return merged
