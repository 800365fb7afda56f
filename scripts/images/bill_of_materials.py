"""The bill of materials of an image: CycloneDX 1.6 in JSON. Pure.

cyclonedx-py writes what it knows, the Python packages; the image itself, its interpreter and the packages of its
distribution are added here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

Document = dict[str, Any]


@dataclass(frozen=True)
class Image:
    """An image that was built. digest: `sha256:…` of its configuration."""

    name: str
    tag: str
    digest: str


@dataclass(frozen=True)
class System:
    """What is below the Python packages. packages: (name, version, architecture) as dpkg has them."""

    python: str
    distribution: str
    packages: tuple[tuple[str, str, str], ...]


def parse_system(python: str, os_release: str, dpkg: str) -> System:
    """Return the system of an image from `python --version`, /etc/os-release and lines of dpkg-query."""
    lines = (line.partition("=") for line in os_release.splitlines())
    distribution = next((value.strip('"') for key, _, value in lines if key == "ID"), "")
    rows = [line.split("\t") for line in dpkg.splitlines() if line.strip()]
    return System(python.split()[-1], distribution, tuple((name, version, arch) for name, version, arch in rows))


def bill_of_materials(python_bill: Document, image: Image, system: System) -> Document:
    """Return the bill of an image. python_bill: cyclonedx-py's, of its environment."""
    root = _image_component(image)
    others = [
        _interpreter(system),
        *(_system_package(system.distribution, package) for package in system.packages),
    ]
    components = [*python_bill["components"], *others]
    metadata = {**python_bill.get("metadata", {}), "component": root}
    return {
        **python_bill,
        "metadata": metadata,
        "components": components,
        "dependencies": [
            *(each for each in python_bill.get("dependencies", []) if each["ref"] != root["bom-ref"]),
            *({"ref": each["bom-ref"]} for each in others),
            {"ref": root["bom-ref"], "dependsOn": sorted(_refs(components))},
        ],
    }


def _refs(components: Iterable[Document]) -> Iterable[str]:
    return (str(each["bom-ref"]) for each in components)


def _image_component(image: Image) -> Document:
    return {
        "type": "container",
        "bom-ref": f"image:{image.name}",
        "name": image.name,
        "version": image.tag,
        "purl": f"pkg:oci/{image.name.rpartition('/')[2]}@{quote(image.digest)}?tag={image.tag}",
        "hashes": [{"alg": "SHA-256", "content": image.digest.removeprefix("sha256:")}],
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }


def _interpreter(system: System) -> Document:
    return {
        "type": "application",
        "bom-ref": "interpreter:python",
        "name": "python",
        "version": system.python,
        "purl": f"pkg:generic/python@{system.python}",
    }


def _system_package(distribution: str, package: tuple[str, str, str]) -> Document:
    name, version, architecture = package
    purl = f"pkg:deb/{distribution}/{quote(name)}@{quote(version)}?arch={architecture}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
