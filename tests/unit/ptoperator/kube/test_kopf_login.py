"""kopf watches the cluster that our calls go to, as the same user."""

import logging
from pathlib import Path

import kopf
import pytest
import yaml
from kubernetes.config import incluster_config

from ptkube.client import Kube
from ptlocal.apiserver.http.tls import Credentials
from ptoperator.kopf_login import connection


def test_the_context_that_was_chosen_and_its_proxy(tmp_path: Path) -> None:
    entries = [
        {"name": name, "cluster": {"server": f"http://{name}.example", "proxy-url": f"http://{name}-proxy.example"}}
        for name in ("current", "chosen")
    ]
    contexts = [{"name": name, "context": {"cluster": name, "user": name}} for name in ("current", "chosen")]
    users = [{"name": name, "user": {"token": f"token-of-{name}"}} for name in ("current", "chosen")]
    config = {"current-context": "current", "contexts": contexts, "clusters": entries, "users": users}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    login = connection(Kube.load(str(tmp_path / "config"), "chosen"))
    assert login is not None
    assert (login.server, login.proxy_url) == ("http://chosen.example", "http://chosen-proxy.example")
    assert login.as_http_headers() == {"Authorization": "Bearer token-of-chosen"}


def test_the_service_account_in_a_pod_and_its_newest_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pki = Credentials(tmp_path / "pki")
    token = tmp_path / "token"
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(pki.ca))
    token.write_text("old")
    (tmp_path / "namespace").write_text("posttrain\n")
    kube = Kube.load()
    access = kube.access
    assert (access.server, kube.namespace, access.ca_pem) == ("https://[fd00::1]:443", "posttrain", pki.ca.read_text())
    assert access.authorization == "bearer old"
    token.write_text("new")
    login = connection(kube, logger=logging.getLogger(), settings=kopf.OperatorSettings())
    assert login is not None
    assert (login.server, login.token) == (access.server, "new")
