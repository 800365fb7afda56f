"""Environment and volumes of a container, from literals, downward API, ConfigMaps and Secrets."""

import base64
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ptapi.quantity import parse_quantity
from ptkube.resources import Manifest
from ptlocal.kubelet.container.value_sources import NotReady, References, environment, field_value
from ptlocal.kubelet.container.volumes import mounts_of, prepare

NODE = {"status": {"allocatable": {"cpu": "4", "memory": "8Gi"}}}
OBJECTS: dict[tuple[str, str], Manifest] = {
    ("ConfigMap", "cm"): {
        "data": {"a": "1", "b.txt": "two"},
        "binaryData": {"raw": base64.b64encode(b"\xff").decode()},
    },
    ("Secret", "s"): {"data": {"token": base64.b64encode(b"hush").decode()}},
}


def lookup(kind: str, name: str) -> Manifest | None:
    return OBJECTS.get((kind, name))


REFS = References(lookup, token=lambda pod, projection: f"token of {pod['metadata']['name']}")


def pod(*volumes: Manifest, **container: Any) -> Manifest:
    return {
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": "u",
            "labels": {"tier/x": "gold"},
            "annotations": {"note": 'say "hi"\n'},
        },
        "spec": {"nodeName": "local", "volumes": list(volumes), "containers": [{"name": "c", **container}]},
    }


def env(*entries: Manifest, **container: Any) -> dict[str, str]:
    p = pod(env=list(entries), **container)
    return environment(p, p["spec"]["containers"][0], NODE, REFS)


def test_entries_may_refer_to_earlier_ones_and_override_env_from() -> None:
    got = env(
        {"name": "X", "value": "v"},
        {"name": "Y", "value": "$(X)-$(LATER)"},
        {"name": "LATER", "value": "l"},
        {"name": "p_a", "value": "mine"},
        envFrom=[{"configMapRef": {"name": "cm"}, "prefix": "p_"}],
    )
    assert (got["Y"], got["p_a"], got["p_b.txt"]) == ("v-$(LATER)", "mine", "two")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u"),
        ("spec.nodeName", "local"),
        ("metadata.labels['tier/x']", "gold"),
        ("metadata.labels['none']", ""),
        ("status.podIP", "127.0.0.1"),
        ("spec.serviceAccountName", "default"),
        ("metadata.annotations", 'note="say \\"hi\\"\\n"'),
    ],
)
def test_downward_api_fields(path: str, expected: str) -> None:
    assert field_value(pod(), path) == expected


def test_resource_fields_count_in_units_of_the_divisor_and_fall_back_to_the_node() -> None:
    def ref(resource: str, divisor: str = "1") -> Manifest:
        return {"name": resource, "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor}}}

    got = env(
        ref("requests.cpu"),
        ref("limits.memory", "1Mi"),
        ref("limits.cpu"),
        resources={"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}},
    )
    assert got == {"requests.cpu": "1", "limits.memory": "1024", "limits.cpu": "4"}


def test_keys_of_configmaps_and_secrets() -> None:
    got = env(
        {"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}},
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "a"}}},
        {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "zzz", "optional": True}}},
        {"name": "GONE", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "k", "optional": True}}},
    )
    assert got == {"T": "hush", "A": "1"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"secretKeyRef": {"name": "gone", "key": "k"}}, 'secret "gone" not found'),
        ({"configMapKeyRef": {"name": "cm", "key": "zzz"}}, "couldn't find key zzz in ConfigMap ns/cm"),
        ({"fieldRef": {"fieldPath": "spec.magic"}}, "unsupported fieldPath: spec.magic"),
    ],
)
def test_what_is_missing_is_named(source: Manifest, message: str) -> None:
    with pytest.raises(NotReady, match=message) as caught:
        env({"name": "X", "valueFrom": source})
    assert caught.value.reason == "CreateContainerConfigError"


def local(tmp_path: Path, *volumes: Manifest) -> dict[str, Path]:
    return prepare(pod(*volumes), NODE, tmp_path / "volumes", tmp_path / "claims", REFS)


def test_configmap_and_secret_become_files_with_modes(tmp_path: Path) -> None:
    got = local(
        tmp_path,
        {"name": "all", "configMap": {"name": "cm"}},
        {"name": "one", "secret": {"secretName": "s", "items": [{"key": "token", "path": "d/t", "mode": 0o400}]}},
    )
    assert sorted(os.listdir(got["all"])) == ["a", "b.txt", "raw"]
    assert (got["all"] / "b.txt").read_text() == "two"
    assert (got["all"] / "raw").read_bytes() == b"\xff"
    assert (got["one"] / "d" / "t").read_text() == "hush"
    assert (got["one"] / "d" / "t").stat().st_mode & 0o777 == 0o400


def test_projected_and_downward_volumes(tmp_path: Path) -> None:
    token = {"serviceAccountToken": {"path": "t"}}
    downward = {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}
    got = local(
        tmp_path,
        {"name": "v", "projected": {"sources": [{"configMap": {"name": "cm"}}, {"downwardAPI": downward}, token]}},
    )
    assert (got["v"] / "t").read_text() == "token of p"
    assert (got["v"] / "a").read_text() == "1"
    assert (got["v"] / "labels").read_text() == 'tier/x="gold"'


def test_claims_outlive_pods_and_empty_dirs_are_the_pods_own(tmp_path: Path) -> None:
    claim = {"name": "c", "persistentVolumeClaim": {"claimName": "data"}}
    got = local(tmp_path, claim, {"name": "e", "emptyDir": {}})
    assert got["c"] == tmp_path / "claims" / "ns" / "data"
    assert got["e"] == tmp_path / "volumes" / "e"
    assert got["c"].is_dir()


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"name": "v", "configMap": {"name": "gone"}}, 'SetUp failed for volume "v": configmap "gone" not found'),
        ({"name": "v", "configMap": {"name": "cm", "items": [{"key": "q", "path": "q"}]}},
         "non-existent configmap key: q"),
        ({"name": "v", "configMap": {"name": "cm", "items": [{"key": "a", "path": "../../x"}]}},
         "leads out of the volume"),
        ({"name": "v", "hostPath": {"path": "/no/such", "type": "Directory"}},
         "hostPath type check failed: /no/such is not a directory"),
        ({"name": "v", "nfs": {"server": "x"}}, "volume kind nfs does not exist in the embedded cluster"),
    ],
)  # fmt: skip
def test_a_volume_that_cannot_be_set_up_says_why(tmp_path: Path, volume: Manifest, message: str) -> None:
    with pytest.raises(NotReady, match=message) as caught:
        local(tmp_path, volume)
    assert caught.value.reason == "FailedMount"


def test_optional_sources_may_be_missing(tmp_path: Path) -> None:
    got = local(tmp_path, {"name": "v", "configMap": {"name": "gone", "optional": True}})
    assert os.listdir(got["v"]) == []


def test_sub_paths_may_name_the_pod(tmp_path: Path) -> None:
    volumes = {"v": tmp_path / "v"}
    mount = {"name": "v", "mountPath": "/data", "subPathExpr": "run-$(POD)"}
    mounts = mounts_of({"volumeMounts": [mount]}, volumes, {"POD": "p"})
    assert [(m.path, m.local) for m in mounts] == [("/data", str(tmp_path / "v" / "run-p"))]
    assert (tmp_path / "v" / "run-p").is_dir()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", "2"),
        ("500m", "0.5"),
        ("1.5", "1.5"),
        ("2Gi", "2147483648"),
        ("1e3", "1000"),
        ("3M", "3000000"),
        ("1E", "1000000000000000000"),
        ("5Ki", "5120"),
    ],
)
def test_quantities(text: str, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "x", "1Q", "Gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a Kubernetes quantity"):
        parse_quantity(text)
