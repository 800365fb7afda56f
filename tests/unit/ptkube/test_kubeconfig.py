"""Which server and credentials kubeconfig files and a pod's service account come to, and what is said of wrong ones."""

import base64
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptkube.errors import ConfigError
from ptkube.kubeconfig import from_files, load
from ptlocal.apiserver.http.tls import Credentials


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


def test_several_files_merge_and_the_first_definition_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path / "a", config("one", token="first"))
    second = write(tmp_path / "b", config("two", token="second"))
    third = write(tmp_path / "c", {**config("one", token="late"), "current-context": "two"})
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, (first, tmp_path / "gone", second, third))))
    assert load().authorization == "Bearer first"
    assert load(context="two").authorization == "Bearer second"


def test_certificates_come_from_data_or_files_and_none_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    pki = Credentials(tmp_path / "pki")
    key = (tmp_path / "pki" / "server.key").read_bytes()
    content = config(**{"client-certificate": "pki/server.crt", "client-key-data": base64.b64encode(key).decode()})
    access = from_files([write(tmp_path / "c", content)])
    assert (access.cert_pem, access.key_pem) == (pki.certificate.read_text(), key.decode())
    assert list((tmp_path / "temporary").iterdir()) == []
    assert from_files([tmp_path / "c"]).cert_pem == access.cert_pem, "a second time, too"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"cannot read kubeconfig .*: line \d: "),
        ({}, "it has no contexts: is it a kubeconfig"),
        ("- 1", "cannot read kubeconfig .*: "),
        ({**config(), "current-context": ""}, "no current-context"),
        ({**config(), "current-context": "nope"}, "context 'nope' does not exist; contexts: one"),
        ({**config(), "clusters": []}, "context 'one': .*Expected object with name one in .*clusters"),
        ({**config(), "clusters": [{"name": "one", "cluster": {"server": "one:6443"}}]}, "not an http"),
        (config(**{"auth-provider": {"name": "oidc", "config": {"refresh-token": "secret"}}}), "Expected key id-token"),
        (config(**{"auth-provider": {"name": "azure"}}), "auth-provider 'azure' gave no credentials"),
        (config(**{"client-certificate": "gone.pem"}), "File does not exist: .*gone.pem"),
    ],
)
def test_a_broken_kubeconfig_is_explained(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        from_files([write(tmp_path / "c", content)])
    assert "secret" not in str(caught.value)


def test_no_configuration_at_all_says_how_to_get_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="ptctl local up"):
        load()
    with pytest.raises(ConfigError, match="kubeconfig not found"):
        load(str(tmp_path / "missing"))


def test_a_missing_exec_plugin_shows_its_install_hint(tmp_path: Path) -> None:
    plugin = {"apiVersion": "v1", "command": "no-such-plugin", "installHint": "gcloud components install it"}
    with pytest.raises(ConfigError, match=r"'no-such-plugin' gave no credentials: .*No such file(.|\n)*install it"):
        from_files([write(tmp_path / "c", config(exec=plugin))])
