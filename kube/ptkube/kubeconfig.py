"""Where the API server is and who asks: kubeconfig files and the pod's service account, read by `kubernetes.config`.

What is ours: which files count, kubectl's choice of a context, and errors that say what to do. Certificates stand in a
file for the moment in which they are read, so that none is left behind by a process that is killed.
"""

import logging
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from urllib3.util import make_headers, parse_url

from ptkube.errors import ConfigError
from ptkube.official_client import (
    ConfigException,
    Configuration,
    KubeConfigLoader,
    KubeConfigMerger,
    incluster_config,
)

_EXPIRY_MARGIN_S = 30.0


@dataclass(frozen=True)
class Access:
    """All that a connection needs. The certificates stand here and in `tls`, not in the configuration."""

    configuration: Configuration
    source: str
    namespace: str = "default"
    context: str = ""
    """Empty for a pod's service account."""
    impersonate: str = ""
    expires: float = float("inf")
    """When a plugin's credentials must be fetched anew, in seconds since 1970."""
    ca_pem: str | None = None
    cert_pem: str | None = None
    key_pem: str | None = None
    tls: ssl.SSLContext | None = None

    @property
    def server(self) -> str:
        """Return the address of the API server."""
        return str(self.configuration.host)

    @property
    def authorization(self) -> str:
        """Return the Authorization header: a service account's token is read again each minute."""
        try:
            return str(self.configuration.get_api_key_with_prefix("BearerToken") or "").strip()
        except (ConfigException, OSError) as error:
            raise ConfigError(f"cannot read the token of {self.source}: {_sentence(error)}") from error


def load(path: str | None = None, context: str | None = None) -> Access:
    """Return the access of an explicit file, else KUBECONFIG, ~/.kube/config, or the pod's service account."""
    home = Path.home() / ".kube" / "config"
    listed = [path] if path else [each for each in os.environ.get("KUBECONFIG", "").split(os.pathsep) if each]
    if listed:
        return from_files([Path(each).expanduser() for each in listed], context)
    if home.exists():
        return from_files([home], context)
    in_pod = incluster_config.SERVICE_HOST_ENV_NAME in os.environ
    if in_pod and Path(incluster_config.SERVICE_TOKEN_FILENAME).exists():
        return _in_cluster()
    raise ConfigError(
        f"no kubeconfig: KUBECONFIG is not set and {home} does not exist\n"
        "hint: `ptctl local up` makes a cluster on this machine; "
        "`gcloud container clusters get-credentials CLUSTER` connects to one on GKE"
    )


def from_files(paths: list[Path], context: str | None = None) -> Access:
    """Merge like kubectl: for every name, and for the current context, the first file that defines it wins."""
    existing = [str(path) for path in paths if path.exists()]
    if not existing:
        raise ConfigError(f"kubeconfig not found: {', '.join(map(str, paths))}\nhint: check --kubeconfig or KUBECONFIG")
    source = os.pathsep.join(existing)
    try:
        merger = KubeConfigMerger(source)
        contexts = [str(entry["name"]) for entry in merger.config.value["contexts"]]
        # the library takes the last file's
        named = [each["current-context"] for each in merger.config_files.values() if each.get("current-context")]
    except Exception as error:  # AttributeError, YAMLError: the library checks nothing
        raise ConfigError(f"cannot read kubeconfig {source}: {_sentence(error)}") from error
    chosen = _chosen_context(context or next(iter(named), ""), contexts, source)
    with tempfile.TemporaryDirectory(prefix="posttrain-") as folder:
        return _access(merger, chosen, source, folder)


def reload(access: Access) -> Access:
    """Return the access of the same context as its files are now, or of the same service account."""
    if not access.context:
        return _in_cluster()
    return from_files([Path(each) for each in access.source.split(os.pathsep)], access.context)


def _in_cluster() -> Access:
    configuration = Configuration(host="")
    folder = Path(incluster_config.SERVICE_TOKEN_FILENAME).parent
    try:
        incluster_config.load_incluster_config(client_configuration=configuration)
    except (ConfigException, OSError) as error:
        raise ConfigError(f"cannot use the service account in {folder}: {_sentence(error)}") from error
    namespace = folder / "namespace"
    return _with_certificates(
        configuration, source=str(folder), namespace=namespace.read_text().strip() if namespace.exists() else "default"
    )


def _chosen_context(current: str, contexts: list[str], source: str) -> str:
    known = ", ".join(contexts)
    if not current:
        choose = f"choose one with --context: {known}" if known else "it has no contexts: is it a kubeconfig?"
        raise ConfigError(f"{source}: no current-context\nhint: {choose}")
    if current not in contexts:
        raise ConfigError(f"{source}: context '{current}' does not exist; contexts: {known or 'none'}")
    return current


def _access(merger: KubeConfigMerger, chosen: str, source: str, folder: str) -> Access:
    configuration = Configuration(host="")
    with _library_log() as logged:
        try:
            loader = KubeConfigLoader(
                merger.config,
                chosen,
                config_base_path=None,
                temp_file_path=folder,
                get_google_credentials=_refuse_gcp,
            )
            loader.load_and_set(configuration)
        except Exception as error:  # also what oauthlib raises, for an auth-provider
            raise ConfigError(f"{source}: context '{chosen}': {_sentence(error)}") from error
    context = loader.current_context["context"]
    user = _user_of(merger, context)
    _check(configuration, user, f"{source}: context '{chosen}'", logged)
    _set_proxy(configuration, is_chosen=hasattr(loader, "proxy"))
    configuration.refresh_api_key_hook = None  # it would run a plugin at every call in its token's last minutes
    expiry = getattr(loader, "expiry", None)
    return _with_certificates(
        configuration,
        source=source,
        namespace=str(context.get("namespace") or "default"),
        context=chosen,
        impersonate=str(user.get("as") or ""),
        expires=expiry.timestamp() - _EXPIRY_MARGIN_S if expiry else float("inf"),
    )


def _refuse_gcp() -> None:
    raise ConfigException(
        "auth-provider 'gcp' cannot renew its token\nhint: use gke-gcloud-auth-plugin, as kubectl does"
    )


def _user_of(merger: KubeConfigMerger, context: dict[str, Any]) -> dict[str, Any]:
    entry = merger.config["users"].get_with_name(context.get("user"), safe=True)
    return dict(entry.value.get("user") or {}) if entry is not None else {}


def _check(configuration: Configuration, user: dict[str, Any], where: str, logged: list[str]) -> None:
    """Raise ConfigError for what the library leaves out in silence: an address, a plugin's credentials."""
    url = urlsplit(configuration.host)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(f"{where}: server '{configuration.host}' is not an http(s) address")
    if configuration.api_key or configuration.cert_file:
        return
    if plugin := user.get("exec"):
        command = plugin.get("command")
        hint = plugin.get("installHint") or f"is '{command}' on PATH, and what does it print?"
        reason = "; ".join(logged) or "no reason given"
        raise ConfigError(f"{where}: credential plugin '{command}' gave no credentials: {reason}\nhint: {hint}")
    if provider := user.get("auth-provider"):
        raise ConfigError(
            f"{where}: auth-provider '{provider.get('name')}' gave no credentials\n"
            "hint: use an exec plugin; for GKE: gke-gcloud-auth-plugin"
        )


def _set_proxy(configuration: Configuration, *, is_chosen: bool) -> None:
    """Ask a proxy of the kubeconfig always, one of the environment not for this machine, as kubectl does."""
    configuration.no_proxy = None if is_chosen else f"{configuration.no_proxy or ''},localhost,127.0.0.0/8,::1"
    if configuration.proxy and (login := parse_url(configuration.proxy).auth):
        configuration.proxy_headers = make_headers(proxy_basic_auth=login)


def _with_certificates(configuration: Configuration, **rest: Any) -> Access:
    """Move the certificates out of the configuration: urllib3 would read their files at every new connection."""
    files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    try:
        ca_pem, cert_pem, key_pem = (Path(file).read_text() if file else None for file in files)
        tls = _tls_context(configuration, ca_pem) if urlsplit(configuration.host).scheme == "https" else None
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(f"{rest['source']}: cannot use the certificates: {_sentence(error)}") from error
    configuration.ssl_ca_cert = configuration.cert_file = configuration.key_file = None
    return Access(configuration, ca_pem=ca_pem, cert_pem=cert_pem, key_pem=key_pem, tls=tls, **rest)


def _tls_context(configuration: Configuration, ca_pem: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=ca_pem)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context


@contextmanager
def _library_log() -> Iterator[list[str]]:
    """Collect what `kubernetes.config` logs, without its credentials, where a plugin fails: it raises nothing."""
    logged: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        logged.append(record.getMessage())
        return False

    root = logging.getLogger()
    root.addFilter(collect)
    try:
        yield logged
    finally:
        root.removeFilter(collect)


def _sentence(error: Exception) -> str:
    """Return the problem in one line, without YAML's drawing and the entries, with secrets, that the library quotes."""
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark is not None else ""
    return where + re.sub(r"\{.*\}", "…", str(getattr(error, "problem", None) or error), flags=re.DOTALL)
