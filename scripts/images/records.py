"""Write the records of an image into `dist/`: its bill of materials, and where it comes from.

The bill is checked against CycloneDX's schema by CycloneDX's own library, inside the image that looks into this one.
"""

import hashlib
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from scripts.images.bill_of_materials import Document, Image, bill_of_materials, parse_system
from scripts.images.commands import Base, container, image_id, output, step
from scripts.images.provenance import Build, provenance
from scripts.images.settings import ROOT, Settings, version

DIRECTORY = ROOT / "dist"
INPUTS = ("Dockerfile", "constraints.txt", "scripts/images/build_tools.txt")
_PACKAGES = ["dpkg-query", "--show", "--showformat=${Package}\\t${Version}\\t${Architecture}\\n"]
_BILL = 'exec /bill/bin/cyclonedx-py environment --spec-version 1.6 --output-format JSON "$(command -v python)"'
_CHECK = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()))
"""


def write(
    settings: Settings, target: str, base: Base, revision: str, times: tuple[datetime, datetime]
) -> Iterator[Path]:
    """Write both records of an image, and yield their paths. times: when its build began and ended."""
    name = settings.image(target)
    repository, _, tag = name.rpartition(":")
    image = Image(repository, tag, image_id(settings, name))
    stem = (
        f"posttrain-{target}-{version()}-{settings.accelerator}"
        if target == "trainer"
        else f"posttrain-{target}-{version()}"
    )
    bill = json.dumps(_bill(settings, target, image), indent=2)
    with container(settings, f"{target}-bill") as inside:
        step(f"{target}: its bill of materials is CycloneDX", [*inside, "/bill/bin/python", "-c", _CHECK], stdin=bill)
        installed = output([*inside, "cat", "/dist/installed.txt"]).splitlines()
    path = DIRECTORY / f"{stem}.cdx.json"
    yield _written(path, bill)
    statement = provenance(
        Build(
            image=repository,
            digest=image.digest,
            target=target,
            accelerator=settings.accelerator,
            tool=(settings.kind, output([settings.tool, "--version"])),
            revision=revision,
            base_name=base.name,
            base_digest=base.digest,
            installed=tuple(installed),
            inputs={each: _sha256(ROOT / each) for each in INPUTS},
            records={path.name: _sha256(path)},
            started=times[0],
            finished=times[1],
        )
    )
    yield _written(DIRECTORY / f"{stem}.provenance.json", json.dumps(statement, indent=2))


def _bill(settings: Settings, target: str, image: Image) -> Document:
    with container(settings, f"{target}-bill") as inside:
        packages = json.loads(output([*inside, "sh", "-ec", _BILL]))
        python = output([*inside, "python", "--version"])
        os_release = output([*inside, "cat", "/etc/os-release"])
        dpkg = output([*inside, *_PACKAGES])
    return bill_of_materials(packages, image, parse_system(python, os_release, dpkg))


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
    return path


def _sha256(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
