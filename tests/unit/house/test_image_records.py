"""What `make images` writes beside an image: its bill of materials, its provenance, and pip's own record inside it."""

import hashlib
import json
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from scripts.images.bill_of_materials import Image, System, bill_of_materials, parse_system
from scripts.images.installed import requirements
from scripts.images.provenance import Build, provenance

IMAGE = Image("r.example/posttrain-operator", "0.1.0", "sha256:" + "d" * 64)
SYSTEM = parse_system(
    "Python 3.11.16",
    'PRETTY_NAME="Debian GNU/Linux 13"\nID=debian\n',
    "libstdc++6\t14.2.0-19\tamd64\nbash\t5.2.37-2+b5\tamd64\n",
)
OF_PYTHON = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.6",
    "metadata": {"tools": {"components": []}},
    "components": [{"type": "library", "bom-ref": "kopf==1.45.2", "name": "kopf", "version": "1.45.2"}],
    "dependencies": [{"ref": "kopf==1.45.2"}],
}


def test_a_bill_lists_the_image_its_interpreter_and_both_kinds_of_packages() -> None:
    bill = bill_of_materials(OF_PYTHON, IMAGE, SYSTEM)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    root = bill["metadata"]["component"]
    assert (root["type"], root["version"]) == ("container", "0.1.0")
    assert root["purl"] == f"pkg:oci/posttrain-operator@sha256%3A{'d' * 64}?tag=0.1.0"
    assert {each["name"]: each["version"] for each in bill["components"]} == {
        "kopf": "1.45.2",
        "python": "3.11.16",
        "libstdc++6": "14.2.0-19",
        "bash": "5.2.37-2+b5",
    }
    assert "pkg:deb/debian/libstdc%2B%2B6@14.2.0-19?arch=amd64" in {each.get("purl") for each in bill["components"]}
    assert bill["metadata"]["tools"] == {"components": []}


def test_every_reference_of_a_bill_leads_to_one_component() -> None:
    bill = bill_of_materials(OF_PYTHON, IMAGE, SYSTEM)
    refs = [each["bom-ref"] for each in [bill["metadata"]["component"], *bill["components"]]]
    assert len(set(refs)) == len(refs)
    assert sorted(each["ref"] for each in bill["dependencies"]) == sorted(refs)
    assert {each for entry in bill["dependencies"] for each in entry.get("dependsOn", [])} <= set(refs)


def test_a_base_of_another_distribution_is_named_by_it() -> None:
    assert parse_system("Python 3.12.1", "ID=ubuntu\n", "") == System("3.12.1", "ubuntu", ())


def build(**changes: Any) -> Build:
    values: dict[str, Any] = {
        "image": IMAGE.name,
        "digest": IMAGE.digest,
        "target": "operator",
        "accelerator": "tpu",
        "tool": ("buildah", "buildah version 1.28.2"),
        "revision": "c" * 40,
        "base_name": "docker.io/library/python:3.11.16-slim-trixie@sha256:" + "b" * 64,
        "base_digest": "sha256:" + "b" * 64,
        "installed": (
            f"charset_normalizer==3.5.2 --hash=sha256:{'1' * 64}",
            f"posttrain==0.1.0 --hash=sha256:{'2' * 64}",
        ),
        "inputs": {"Dockerfile": "sha256:" + "3" * 64},
        "records": {"posttrain-operator-0.1.0.cdx.json": "sha256:" + "4" * 64},
        "started": datetime(2026, 11, 22, 20, 0, tzinfo=UTC),
        "finished": datetime(2026, 11, 22, 20, 5, tzinfo=UTC),
    }
    return Build(**(values | changes))


def test_a_statement_names_image_source_builder_and_every_material_by_digest() -> None:
    statement = json.loads(json.dumps(provenance(build())))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["subject"] == [{"name": IMAGE.name, "digest": {"sha256": "d" * 64}}]
    definition, run = statement["predicate"]["buildDefinition"], statement["predicate"]["runDetails"]
    assert definition["externalParameters"] == {
        "source": f"git+https://github.com/posttrain/posttrain@{'c' * 40}",
        "target": "operator",
    }
    materials = {each.get("uri") or each["name"]: each["digest"] for each in definition["resolvedDependencies"]}
    assert materials == {
        "git+https://github.com/posttrain/posttrain": {"gitCommit": "c" * 40},
        "pkg:docker/docker.io/library/python:3.11.16-slim-trixie": {"sha256": "b" * 64},
        "https://github.com/posttrain/posttrain/Dockerfile": {"sha256": "3" * 64},
        "pkg:pypi/charset-normalizer@3.5.2": {"sha256": "1" * 64},
        "posttrain-0.1.0.whl": {"sha256": "2" * 64},
    }
    assert run["builder"]["version"] == {"buildah": "buildah version 1.28.2"}
    assert run["metadata"] == {"startedOn": "2026-11-22T20:00:00Z", "finishedOn": "2026-11-22T20:05:00Z"}
    assert run["byproducts"] == [{"name": "posttrain-operator-0.1.0.cdx.json", "digest": {"sha256": "4" * 64}}]


def test_the_trainers_statement_says_what_it_is_for() -> None:
    parameters = provenance(build(target="trainer"))["predicate"]["buildDefinition"]["externalParameters"]
    assert parameters["accelerator"] == "tpu"


def test_files_that_are_not_in_a_commit_are_admitted() -> None:
    def source(revision: str) -> Any:
        return provenance(build(revision=revision))["predicate"]["buildDefinition"]["resolvedDependencies"][0]

    assert source("c" * 40 + "-dirty") == {
        "uri": "git+https://github.com/posttrain/posttrain",
        "digest": {"gitCommit": "c" * 40},
        "annotations": {"uncommittedChanges": True},
    }
    assert source("")["uri"].startswith("pkg:docker/")


def test_a_package_without_a_hash_is_refused() -> None:
    with pytest.raises(ValueError, match=r"installed\.txt: kopf==1\.45\.2: expected NAME==VERSION --hash=sha256:…"):
        provenance(build(installed=("kopf==1.45.2",)))


def pip(*words: object) -> str:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-index", *map(str, words)]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def test_pip_takes_what_is_recorded_of_its_own_installation(tmp_path: Path) -> None:
    """An image's installed.txt installs the same files again, and names no index."""
    wheel = tmp_path / "nobody_has_this-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        metadata = "Metadata-Version: 2.1\nName: Nobody.Has-This\nVersion: 1.0\n"
        archive.writestr("nobody_has_this-1.0.dist-info/METADATA", metadata)
        archive.writestr(
            "nobody_has_this-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("nobody_has_this-1.0.dist-info/RECORD", "")
    report = pip("--find-links", tmp_path, "--report", "-", "nobody-has-this")
    lines = requirements(json.loads(report))
    assert lines == [f"Nobody.Has-This==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"]
    recorded = tmp_path / "installed.txt"
    recorded.write_text("\n".join(lines))
    pip("--find-links", tmp_path, "--require-hashes", "-r", recorded)
