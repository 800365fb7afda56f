"""The official client's import: what it does not execute, and that all of it works when asked for."""

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptkube.errors import ConfigError
from ptkube.kubeconfig import from_files

NOT_EXECUTED = ("google.auth", "requests", "requests_oauthlib", "websocket", "kubernetes.watch.watch")


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_our_client_executes_neither_auth_providers_nor_packages_that_it_does_not_use() -> None:
    program = f"import sys, ptkube.client\nprint([each for each in {NOT_EXECUTED} if each in sys.modules])"
    assert run(program).strip() == "[]"


def test_whoever_asks_for_the_rest_of_the_official_client_has_it() -> None:
    program = """
import sys, ptkube.client
import kubernetes
print(kubernetes.utils.parse_quantity("1Ki"), kubernetes.watch.Watch.__module__)
import google.auth, requests_oauthlib
print(google.auth.default.__module__, requests_oauthlib.OAuth2Session.__module__)
from kubernetes.stream import ws_client
print(ws_client.WSClient.__module__, [each for each in sys.meta_path if "ptkube" in str(each)])
"""
    assert run(program).splitlines() == [
        "1024 kubernetes.watch.watch",
        "google.auth._default requests_oauthlib.oauth2_session",
        "kubernetes.stream.ws_client []",
    ]


@pytest.fixture
def issuer() -> Iterator[str]:
    """An identity provider that gives a new id-token for a refresh token."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer({"token_endpoint": f"http://{self.headers['Host']}/token"})

        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            assert "refresh_token=old" in form, form
            self.answer({"access_token": "a", "id_token": "renewed", "refresh_token": "new", "token_type": "Bearer"})

        def answer(self, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def kubeconfig(path: Path, provider: dict[str, Any]) -> Path:
    content = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
        "clusters": [{"name": "one", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "one", "user": {"auth-provider": provider}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def test_an_oidc_auth_provider_renews_its_token(issuer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")
    expired = "e30." + base64.urlsafe_b64encode(b'{"exp": 1}').decode().rstrip("=") + ".e30"
    settings = {"id-token": expired, "idp-issuer-url": issuer, "client-id": "us", "client-secret": "s"}
    provider = {"name": "oidc", "config": {**settings, "refresh-token": "old"}}
    assert from_files([kubeconfig(tmp_path / "config", provider)]).authorization == "Bearer renewed"


def test_a_gcp_auth_provider_is_told_of_the_plugin(tmp_path: Path) -> None:
    config = kubeconfig(tmp_path / "config", {"name": "gcp"})
    with pytest.raises(ConfigError, match=r"'gcp' cannot renew its token(.|\n)*gke-gcloud-auth-plugin"):
        from_files([config])
