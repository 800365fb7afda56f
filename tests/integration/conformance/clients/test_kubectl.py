"""kubectl, as a user types it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.builders.cluster.api_access import Cluster
from tests.builders.cluster.manifests import eventually

Kubectl = Callable[..., subprocess.CompletedProcess[str]]

WIDGET = """
apiVersion: conformance.posttrain.dev/v1
kind: Widget
metadata:
  name: a
spec:
  size: 4
"""


@pytest.fixture
def kubectl(api: Cluster, namespace: str) -> Kubectl:
    def run(*words: str, stdin: str | None = None, fails: bool = False) -> subprocess.CompletedProcess[str]:
        done = api.kubectl("--namespace", namespace, *words, stdin=stdin)
        assert (done.returncode != 0) is fails, f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done

    return run


def test_apply_get_and_delete(kubectl: Kubectl, widgets: str) -> None:
    assert kubectl("apply", "-f", "-", stdin=WIDGET).stdout.endswith("/a created\n")
    assert kubectl("apply", "-f", "-", stdin=WIDGET).stdout.endswith("/a unchanged\n")
    changed = WIDGET.replace("size: 4", "size: 5")
    assert kubectl("apply", "-f", "-", stdin=changed).stdout.endswith("/a configured\n")
    lines = kubectl("get", "wdg").stdout.splitlines()
    assert lines[0].split() == ["NAME", "COLOR", "SIZE", "AGE"]
    assert lines[1].split()[:3] == ["a", "red", "5"]
    assert json.loads(kubectl("get", "wdg", "a", "-o", "json").stdout)["spec"] == {"color": "red", "size": 5}
    assert kubectl("get", "wdg", "a", "-o", "jsonpath={.spec.size}").stdout == "5"
    assert kubectl("get", "all", "-o", "name").stdout == "widget.conformance.posttrain.dev/a\n"
    assert kubectl("delete", "wdg", "a", "--wait").stdout.startswith("widget")
    assert "NotFound" in kubectl("get", "wdg", "a", fails=True).stderr


def test_server_side_apply_and_its_conflicts(kubectl: Kubectl, widgets: str) -> None:
    kubectl("apply", "--server-side", "-f", "-", stdin=WIDGET)
    kubectl("patch", "wdg", "a", "--type=merge", "-p", '{"spec":{"size":6}}')
    refused = kubectl("apply", "--server-side", "-f", "-", stdin=WIDGET, fails=True)
    assert 'conflict with "kubectl-patch"' in refused.stderr
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=WIDGET)
    assert kubectl("get", "wdg", "a", "-o", "jsonpath={.spec.size}").stdout == "4"


def test_client_side_apply_can_turn_to_server_side(kubectl: Kubectl, widgets: str) -> None:
    """kubectl hands the ownership of its older manager over, by writing managedFields."""
    kubectl("apply", "-f", "-", stdin=WIDGET)
    kubectl("apply", "--server-side", "-f", "-", stdin=WIDGET)
    widget = json.loads(kubectl("get", "wdg", "a", "-o", "json", "--show-managed-fields").stdout)
    managers = {entry["manager"] for entry in widget["metadata"]["managedFields"]}
    assert "kubectl" in managers
    assert "kubectl-client-side-apply" not in managers
    kubectl("apply", "--server-side", "-f", "-", stdin=WIDGET.replace("size: 4", "size: 5"))
    assert kubectl("get", "wdg", "a", "-o", "jsonpath={.spec.size}").stdout == "5"


def test_a_wrong_object_is_refused_in_kubectls_words(kubectl: Kubectl, widgets: str) -> None:
    wrong = WIDGET.replace("size: 4", "{size: 99, color: blue}").replace("spec:\n  ", "spec: ")
    assert 'The Widget "a" is invalid: spec.size: Invalid value: 99' in kubectl(
        "apply", "-f", "-", stdin=wrong, fails=True).stderr  # fmt: skip
    unknown = WIDGET.replace("size: 4", "sise: 4")
    assert 'strict decoding error: unknown field "spec.sise"' in kubectl(
        "apply", "-f", "-", stdin=unknown, fails=True).stderr  # fmt: skip


def test_a_kind_that_does_not_exist_is_named(kubectl: Kubectl) -> None:
    missing = WIDGET.replace("conformance.posttrain.dev", "no.such.group")
    assert 'no matches for kind "Widget" in version "no.such.group/v1"' in kubectl(
        "apply", "-f", "-", stdin=missing, fails=True).stderr  # fmt: skip


def test_label_annotate_patch_edit_and_replace(kubectl: Kubectl, widgets: str) -> None:
    kubectl("create", "-f", "-", stdin=WIDGET)
    kubectl("label", "wdg", "a", "x=y")
    kubectl("annotate", "wdg", "a", "note=hello")
    assert kubectl("get", "wdg", "-l", "x=y", "-o", "name").stdout == "widget.conformance.posttrain.dev/a\n"
    assert kubectl("get", "wdg", "-l", "x=z", "-o", "name").stdout == ""
    assert kubectl("get", "wdg", "--field-selector", "metadata.name=a", "-o", "name").stdout != ""
    kubectl("patch", "wdg", "a", "--type=json", "-p", '[{"op":"replace","path":"/spec/size","value":7}]')
    kubectl("patch", "wdg", "a", "--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Fine"}}')
    widget = json.loads(kubectl("get", "wdg", "a", "-o", "json").stdout)
    assert (widget["spec"]["size"], widget["status"]["phase"], widget["metadata"]["annotations"]["note"]) == (
        7, "Fine", "hello")  # fmt: skip
    kubectl("replace", "-f", "-", stdin=WIDGET)
    assert kubectl("get", "wdg", "a", "-o", "jsonpath={.spec.size}").stdout == "4"


def test_describe_and_explain(kubectl: Kubectl, widgets: str) -> None:
    kubectl("create", "-f", "-", stdin=WIDGET)
    described = kubectl("describe", "wdg", "a").stdout
    assert described.startswith("Name:         a\n")
    assert "Size:   4" in described
    assert "Events:" in described
    explained = kubectl("explain", "wdg.spec").stdout
    assert "KIND:       Widget" in explained
    assert "size\t<integer>" in explained
    assert "FIELD: containers <[]Container>" in kubectl("explain", "pod.spec.containers").stdout


def test_things_made_from_flags(kubectl: Kubectl) -> None:
    """kubectl sends these as protobuf."""
    kubectl("create", "configmap", "c", "--from-literal=x=1")
    kubectl("create", "secret", "generic", "s", "--from-literal=token=hello")
    kubectl("create", "job", "j", "--image=example.com/image:1", "--", "echo", "hi")
    kubectl("create", "service", "clusterip", "svc", "--clusterip=None")
    kubectl("create", "serviceaccount", "robot")
    kubectl("create", "role", "r", "--verb=get", "--resource=pods")
    assert json.loads(kubectl("get", "configmap", "c", "-o", "json").stdout)["data"] == {"x": "1"}
    assert kubectl("get", "secret", "s", "-o", "jsonpath={.data.token}").stdout == "aGVsbG8="
    job = json.loads(kubectl("get", "job", "j", "-o", "json").stdout)
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert (container["image"], container["command"]) == ("example.com/image:1", ["echo", "hi"])
    assert kubectl("get", "role", "r", "-o", "jsonpath={.rules[0].verbs[0]}").stdout == "get"
    assert kubectl("auth", "can-i", "create", "pods").stdout == "yes\n"


def test_wait_for_a_condition_and_for_deletion(kubectl: Kubectl, widgets: str) -> None:
    kubectl("create", "-f", "-", stdin=WIDGET)
    condition = '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'
    kubectl("patch", "wdg", "a", "--subresource=status", "--type=merge", "-p", condition)
    kubectl("wait", "--for=condition=Ready", "wdg/a", "--timeout=60s")
    kubectl("wait", "--for=jsonpath={.spec.size}=4", "wdg/a", "--timeout=60s")
    kubectl("delete", "wdg", "a", "--wait=false")
    kubectl("wait", "--for=delete", "wdg/a", "--timeout=60s")


def test_get_w_follows_changes(api: Cluster, kubectl: Kubectl, widgets: str, tmp_path: Path, namespace: str) -> None:
    kubectl("create", "-f", "-", stdin=WIDGET)
    with (tmp_path / "out").open("w") as out:
        watching = subprocess.Popen(
            ["kubectl", "--kubeconfig", str(api.kubeconfig), *(["--context", api.context] if api.context else []),
             "-n", namespace, "get", "wdg", "-w"], stdout=out)  # fmt: skip

    def rows() -> list[str]:
        return [line.split()[2] for line in (tmp_path / "out").read_text().splitlines()]

    try:
        eventually(lambda: rows() == ["SIZE", "4"], shown=rows)
        for size in (5, 6):
            kubectl("patch", "wdg", "a", "--type=merge", "-p", f'{{"spec":{{"size":{size}}}}}')
        eventually(lambda: rows() == ["SIZE", "4", "5", "6"], shown=rows)
    finally:
        watching.terminate()
        watching.wait()


def test_dry_run_server_and_diff(kubectl: Kubectl, widgets: str) -> None:
    made = kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=WIDGET).stdout
    assert json.loads(made)["spec"] == {"color": "red", "size": 4}
    kubectl("get", "wdg", "a", fails=True)
    kubectl("apply", "-f", "-", stdin=WIDGET)
    difference = kubectl("diff", "-f", "-", stdin=WIDGET.replace("size: 4", "size: 5"), fails=True).stdout
    assert "-  size: 4\n+  size: 5\n" in difference


def test_api_resources_and_version(kubectl: Kubectl, widgets: str) -> None:
    listed = kubectl("api-resources", "--api-group=conformance.posttrain.dev", "--no-headers").stdout.split()
    assert listed == ["widgets", "wdg", "conformance.posttrain.dev/v1", "true", "Widget"]
    assert "Server Version: v1." in kubectl("version").stdout


def test_a_namespace_is_made_and_deleted(api: Cluster, kubectl: Kubectl, namespace: str) -> None:
    name = f"{namespace}-2"
    kubectl("create", "namespace", name)
    if not (api.is_embedded or api.has_controller_manager):
        kubectl("delete", "namespace", name, "--wait=false")
        pytest.skip("nobody empties namespaces here")
    kubectl("delete", "namespace", name, "--wait", "--timeout=60s")
    kubectl("get", "namespace", name, fails=True)


def test_cascade_and_grace_flags(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "c")
    kubectl("delete", "configmap", "c", "--cascade=background", "--grace-period=0", "--force")
    assert kubectl("get", "configmap", "c", "--ignore-not-found").stdout == ""
