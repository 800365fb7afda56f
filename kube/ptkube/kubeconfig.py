"""Where the API server is and how to prove who we are: kubeconfig files and the in-cluster service account.

Why not the official package's loader: importing it costs 0.75 CPU-seconds, more than a whole `ptctl workload list`
may take. Understood: several files in KUBECONFIG, inline data and file references, bearer token and token file,
client certificate, basic auth, exec plugins (so GKE's), CA, tls-server-name, insecure-skip-tls-verify, proxy-url,
impersonation of a user. Left out, and refused by name: the auth-provider stanza that kubectl itself has dropped for
cloud logins.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptkube.errors import ConfigError

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Access:
    """All that a connection needs. `exec_plugin` and `token_file` are read again when they expire."""

    server: str
    namespace: str = "default"
    source: str = ""
    context: str = ""
    ca_pem: str | None = None
    verify: bool = True
    tls_server_name: str | None = None
    proxy_url: str | None = None
    token: str | None = None
    token_file: Path | None = None
    basic: tuple[str, str] | None = None
    cert_pem: str | None = None
    key_pem: str | None = None
    exec_plugin: Mapping[str, Any] | None = None
    impersonate: str | None = None


def load(path: str | None = None, context: str | None = None) -> Access:
    """Return the access of an explicit file, else KUBECONFIG, ~/.kube/config, or the pod's service account."""
    if path:
        return from_files([Path(path).expanduser()], context)
    listed = [Path(p).expanduser() for p in os.environ.get("KUBECONFIG", "").split(os.pathsep) if p]
    if listed:
        return from_files(listed, context)
    home = Path.home() / ".kube" / "config"
    if home.exists():
        return from_files([home], context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (_SERVICE_ACCOUNT / "token").exists():
        return in_cluster(os.environ, _SERVICE_ACCOUNT)
    raise ConfigError(
        f"no kubeconfig: KUBECONFIG is not set and {home} does not exist\n"
        "hint: `ptctl local up` makes a cluster on this machine; "
        "`gcloud container clusters get-credentials CLUSTER` connects to one on GKE"
    )


def in_cluster(env: Mapping[str, str], folder: Path) -> Access:
    """Return the access of a pod's service account."""
    host, port = env["KUBERNETES_SERVICE_HOST"], env.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    namespace = folder / "namespace"
    return Access(
        server=f"https://{host}:{port}",
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        source=str(folder),
        ca_pem=(folder / "ca.crt").read_text(),
        token_file=folder / "token",
    )


def from_files(paths: list[Path], context: str | None = None) -> Access:
    """Merge like kubectl: for every name, the first file that defines it wins."""
    found = [p for p in paths if p.exists()]
    if not found:
        raise ConfigError(f"kubeconfig not found: {', '.join(map(str, paths))}\nhint: check --kubeconfig or KUBECONFIG")
    contexts: dict[str, tuple[Any, Path]] = {}
    clusters: dict[str, tuple[Any, Path]] = {}
    users: dict[str, tuple[Any, Path]] = {}
    current = context or ""
    for path in found:
        config = _read(path)
        current = current or str(config.get("current-context") or "")
        for table, plural, singular in (
            (contexts, "contexts", "context"),
            (clusters, "clusters", "cluster"),
            (users, "users", "user"),
        ):
            for entry in config.get(plural) or []:
                table.setdefault(str(entry["name"]), (entry.get(singular) or {}, path))
    source = os.pathsep.join(map(str, found))
    if not current:
        choose = (
            f"choose one with --context: {', '.join(contexts)}"
            if contexts
            else "it has no contexts: is it a kubeconfig?"
        )
        raise ConfigError(f"{source}: no current-context\nhint: {choose}")
    if current not in contexts:
        known = ", ".join(contexts) or "none"
        raise ConfigError(f"{source}: context '{current}' does not exist; contexts: {known}")
    chosen = contexts[current][0]
    cluster_name, user_name = str(chosen.get("cluster") or ""), str(chosen.get("user") or "")
    if cluster_name not in clusters:
        raise ConfigError(f"{source}: context '{current}' names cluster '{cluster_name}', which is not defined")
    user, user_path = users.get(user_name, ({}, found[0]))
    cluster, cluster_path = clusters[cluster_name]
    return _access(current, chosen, cluster, cluster_path, user, user_path, source)


def _access(
    current: str,
    chosen: dict[str, Any],
    cluster: dict[str, Any],
    cluster_path: Path,
    user: dict[str, Any],
    user_path: Path,
    source: str,
) -> Access:
    if not cluster.get("server"):
        raise ConfigError(f"{source}: the cluster of context '{current}' has no server address")
    if user.get("auth-provider"):
        raise ConfigError(
            f"{source}: user of context '{current}' uses auth-provider '{user['auth-provider'].get('name')}', "
            "which is not supported\nhint: use an exec plugin; for GKE: gke-gcloud-auth-plugin"
        )
    basic = (user["username"], user.get("password") or "") if user.get("username") else None
    token_file = user.get("tokenFile")
    return Access(
        server=str(cluster["server"]).rstrip("/"),
        namespace=str(chosen.get("namespace") or "default"),
        source=source,
        context=current,
        ca_pem=_pem(cluster, "certificate-authority", cluster_path),
        verify=not cluster.get("insecure-skip-tls-verify", False),
        tls_server_name=cluster.get("tls-server-name"),
        proxy_url=cluster.get("proxy-url"),
        token=user.get("token"),
        token_file=(user_path.parent / token_file) if token_file and not user.get("token") else None,
        basic=basic,
        cert_pem=_pem(user, "client-certificate", user_path),
        key_pem=_pem(user, "client-key", user_path),
        exec_plugin=user.get("exec"),
        impersonate=user.get("as"),
    )


def _read(path: Path) -> dict[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        config = yaml.load(path.read_text(), Loader=loader) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read kubeconfig {path}: {_sentence(error)}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"kubeconfig {path} is not a mapping but {type(config).__name__}")
    return config


def _sentence(error: Exception) -> str:
    """Return the problem in one line, without YAML's drawing or Python's error number."""
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark is not None else ""
    return where + str(getattr(error, "problem", None) or getattr(error, "strerror", None) or error)


def _pem(entry: dict[str, Any], key: str, path: Path) -> str | None:
    """Inline data wins over a file; relative file names count from the kubeconfig's folder, as in kubectl."""
    data = entry.get(f"{key}-data")
    if data:
        try:
            return base64.b64decode(data).decode()
        except ValueError as error:
            raise ConfigError(f"{path}: {key}-data is not base64: {error}") from error
    name = entry.get(key)
    if not name:
        return None
    file = path.parent / Path(str(name)).expanduser()
    try:
        return file.read_text()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read {key} {file}: {error.strerror}") from error
