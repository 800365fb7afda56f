"""The chart where there is no Helm, no network but one registry, or no checkout: Kustomize, a mirror, an archive."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.servers.oci_registry import oci_registry

from ptapi.load import load_job
from ptoperator.render import jobset, layout_of
from ptoperator.settings import Settings

helm = pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this platform")

from scripts import make_install  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "posttrain"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MIRROR = "registry.example.com/mirror"
Manifest = dict[str, Any]


def rendered(values: Manifest) -> list[Manifest]:
    files = helm.Chart.load(str(CHART)).render(values, name=make_install.NAME, namespace=make_install.NAMESPACE)
    return [
        body for name, text in files.items() if name.endswith(".yaml") for body in yaml.load_all(text, LOADER) if body
    ]


def of_kustomization(folder: Path) -> list[Manifest]:
    """Every object of a kustomization that only lists resources."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(kustomization) == {"apiVersion", "kind", "resources"}
    paths = [folder / name for name in kustomization["resources"]]
    nested = [
        of_kustomization(path) if path.is_dir() else list(yaml.load_all(path.read_text(), LOADER)) for path in paths
    ]
    return [body for bodies in nested for body in bodies]


def without_helm(body: Manifest) -> Manifest:
    """Without what Helm alone reads: who manages it, from which chart, and what it must not delete."""
    copied: Manifest = json.loads(json.dumps(body))
    for metadata in (copied["metadata"], (copied.get("spec") or {}).get("template", {}).get("metadata") or {}):
        for key in ("app.kubernetes.io/managed-by", "helm.sh/chart"):
            (metadata.get("labels") or {}).pop(key, None)
    (copied["metadata"].get("annotations") or {}).pop("helm.sh/resource-policy", None)
    if not copied["metadata"].get("annotations", True):
        del copied["metadata"]["annotations"]
    return copied


def key(body: Manifest) -> tuple[str, str]:
    return body["kind"], body["metadata"]["name"]


def test_the_base_for_kustomize_is_the_one_that_make_crds_writes() -> None:
    assert make_install.KUSTOMIZE.read_text() == make_install.kustomize_base()


def test_the_base_for_kustomize_is_the_chart_with_its_defaults() -> None:
    base = {key(body): body for body in of_kustomization(ROOT / "manifests" / "install")}
    namespace = base.pop(("Namespace", make_install.NAMESPACE))
    assert namespace == {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": make_install.NAMESPACE}}
    assert base == {key(body): without_helm(body) for body in rendered({})}


def test_no_object_of_the_base_names_its_namespace_where_kustomize_does_not_look() -> None:
    """Its `namespace:` changes metadata and the subjects of bindings, and nothing else."""
    for body in of_kustomization(ROOT / "manifests" / "install"):
        assert make_install.NAMESPACE not in json.dumps({**body, "metadata": {}, "subjects": []}), key(body)


def air_gapped(**more: Any) -> Manifest:
    values: Manifest = yaml.safe_load((ROOT / "charts" / "air-gapped.yaml").read_text())
    return values | more


def operator_container(bodies: list[Manifest]) -> Manifest:
    (deployment,) = [body for body in bodies if body["kind"] == "Deployment"]
    container: Manifest = deployment["spec"]["template"]["spec"]["containers"][0]
    return container


def settings_of(bodies: list[Manifest]) -> Settings:
    return Settings.from_env(
        {each["name"]: each["value"] for each in operator_container(bodies)["env"] if "value" in each}
    )


def test_every_image_of_an_air_gapped_installation_is_of_one_registry() -> None:
    bodies = rendered(air_gapped(tensorboard={"servers": True}))
    container = operator_container(bodies)
    images = [container["image"], *(each["value"] for each in container["env"] if each["name"].endswith("_IMAGE"))]
    assert images == [
        f"{MIRROR}/posttrain-operator:0.1.0",
        f"{MIRROR}/tensorflow/tensorflow:2.18.0",
        f"{MIRROR}/posttrain-trainer:0.1.0",
        f"{MIRROR}/posttrain-trainer:0.1.0-cuda",
        f"{MIRROR}/gce-ai-infra/gpudirect-tcpxo/tcpgpudmarxd-dev:v1.0.14",
        f"{MIRROR}/cloud-tpu-v2-images/pathways/server:latest",
        f"{MIRROR}/cloud-tpu-v2-images/pathways/proxy_server:latest",
    ]
    everything = json.dumps([body for body in bodies if body["kind"] != "CustomResourceDefinition"])
    hosts = set(re.findall(r"[\w.-]+\.(?:com|io|dev|org)(?=/[\w./-]+[:@][\w.])", everything))
    assert hosts == {"registry.example.com"}


@pytest.mark.parametrize("example", ["grpo-v6e-16", "grpo-v6e-pathways"])
def test_every_image_of_a_job_there_is_of_that_registry(example: str) -> None:
    job = load_job((ROOT / "manifests" / "examples" / f"{example}.yaml").read_text())
    made = json.dumps(jobset(layout_of(job, settings_of(rendered(air_gapped())))))
    images = re.findall(r'"image": "([^"]+)"', made)
    assert images
    assert {image.startswith(f"{MIRROR}/") for image in images} == {True}


def test_both_kinds_of_pods_have_the_secret_of_that_registry() -> None:
    bodies = rendered(air_gapped())
    (deployment,) = [body for body in bodies if body["kind"] == "Deployment"]
    accounts = {body["metadata"]["name"]: body for body in bodies if body["kind"] == "ServiceAccount"}
    secrets = [{"name": "mirror"}]
    assert deployment["spec"]["template"]["spec"]["imagePullSecrets"] == secrets
    assert accounts["posttrain-trainer"]["imagePullSecrets"] == secrets
    assert settings_of(bodies).trainer_service_account == "posttrain-trainer"


@pytest.mark.parametrize(
    ("image", "pulled"),
    [
        ({"repository": "r.example:5000/team/op", "tag": "v1"}, f"{MIRROR}/team/op:v1"),
        ({"repository": "localhost/op", "digest": "sha256:" + "a" * 64}, f"{MIRROR}/op@sha256:" + "a" * 64),
        ({"repository": "team/op"}, f"{MIRROR}/team/op:0.1.0"),
        ({"repository": f"{MIRROR}/op"}, f"{MIRROR}/op:0.1.0"),
    ],
)
def test_a_mirror_takes_the_place_of_an_images_own_registry(image: Manifest, pulled: str) -> None:
    values = {"image": image, "global": {"imageRegistry": f"{MIRROR}/"}}
    assert operator_container(rendered(values))["image"] == pulled


def test_a_registry_with_a_scheme_is_refused() -> None:
    with pytest.raises(Exception, match="imageRegistry"):
        rendered({"global": {"imageRegistry": "https://registry.example.com"}})


def test_a_chart_that_is_pushed_to_a_registry_is_the_one_that_is_pulled(tmp_path: Path) -> None:
    archive = Path(helm.package(str(CHART), destination=str(tmp_path)))
    assert archive.name == "posttrain-0.1.0.tgz"
    with oci_registry() as registry:
        helm.push(str(archive), f"oci://{registry.address}/charts", plain_http=True)
        tags = {
            reference
            for name, kind, reference in registry.contents
            if (name, kind) == ("charts/posttrain", "manifests")
        }
        assert "0.1.0" in tags
        manifest = json.loads(registry.contents["charts/posttrain", "manifests", "0.1.0"][1])
        assert manifest["annotations"]["org.opencontainers.image.source"] == "https://github.com/posttrain/posttrain"
        pulled = tmp_path / "pulled"
        pulled.mkdir()
        reference = f"oci://{registry.address}/charts/posttrain"
        helm.pull(reference, version="0.1.0", destination=str(pulled), plain_http=True)
    assert (pulled / archive.name).read_bytes() == archive.read_bytes()
    files = helm.Chart.load(str(pulled / archive.name)).render({}, name="pt", namespace="ns")
    assert files == helm.Chart.load(str(CHART)).render({}, name="pt", namespace="ns")
