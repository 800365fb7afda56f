"""Kubeconfig files and in-cluster configuration become one `Access`."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptkube.credentials import Credentials
from ptkube.errors import ConfigError
from ptkube.kubeconfig import from_files, in_cluster, load


def config(name: str = "one", **user: Any) -> dict[str, Any]:
    return {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "team"}}],
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example:6443/"}}],
        "users": [{"name": name, "user": user}],
    }


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_context_names_server_user_and_namespace(tmp_path: Path) -> None:
    access = from_files([write(tmp_path / "c", config(token="t"))])
    assert (access.server, access.namespace, access.token) == ("https://one.example:6443", "team", "t")


def test_several_files_merge_and_the_first_definition_wins(tmp_path: Path) -> None:
    first = write(tmp_path / "a", config("one", token="first"))
    second = write(tmp_path / "b", {**config("two", token="second")})
    third = write(tmp_path / "c", config("one", token="late"))
    assert from_files([first, second, third]).token == "first"
    assert from_files([first, second, third], "two").token == "second"


def test_inline_data_wins_and_files_count_from_the_kubeconfigs_folder(tmp_path: Path) -> None:
    content = config(**{"client-certificate": "c.pem", "client-key-data": base64.b64encode(b"KEY").decode()})
    write(tmp_path / "c.pem", "CERT")
    access = from_files([write(tmp_path / "c", content)])
    assert (access.cert_pem, access.key_pem) == ("CERT", "KEY")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"cannot read kubeconfig .*: line \d: "),
        ({}, "it has no contexts: is it a kubeconfig"),
        ("- 1", "is not a mapping but list"),
        ({**config(), "current-context": ""}, "no current-context"),
        ({**config(), "current-context": "nope"}, "context 'nope' does not exist; contexts: one"),
        ({**config(), "clusters": []}, "names cluster 'one', which is not defined"),
        (config(**{"auth-provider": {"name": "gcp"}}), "auth-provider 'gcp', which is not supported"),
        (config(**{"client-certificate": "gone.pem"}), "cannot read client-certificate"),
    ],
)
def test_a_broken_kubeconfig_is_explained(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_files([write(tmp_path / "c", content)])


def test_no_configuration_at_all_says_how_to_get_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="ptctl local up"):
        load()
    with pytest.raises(ConfigError, match="kubeconfig not found"):
        load(str(tmp_path / "missing"))


def test_in_cluster_reads_the_service_account_and_its_rotating_token(tmp_path: Path) -> None:
    write(tmp_path / "ca.crt", "CA")
    write(tmp_path / "token", "old\n")
    write(tmp_path / "namespace", "posttrain")
    access = in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path)
    assert (access.server, access.namespace, access.ca_pem) == ("https://[fd00::1]:443", "posttrain", "CA")
    now = [0.0]
    credentials = Credentials(access, clock=lambda: now[0])
    assert credentials.headers() == {"Authorization": "Bearer old"}
    write(tmp_path / "token", "new\n")
    assert credentials.headers() == {"Authorization": "Bearer old"}
    now[0] = 61.0
    assert credentials.headers() == {"Authorization": "Bearer new"}


def test_a_missing_exec_plugin_shows_its_install_hint(tmp_path: Path) -> None:
    plugin = {"apiVersion": "v1", "command": "no-such-plugin", "installHint": "gcloud components install it"}
    access = from_files([write(tmp_path / "c", config(exec=plugin))])
    with pytest.raises(ConfigError, match="gcloud components install it"):
        Credentials(access).headers()
