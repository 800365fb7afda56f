"""Build the images of operator and trainer with podman, buildah or docker, try both, and record what is in them.

`make images`. Each is started as its own user, with a root filesystem that is read-only where the tool can do that
(buildah cannot): `--help`, what is installed, and a training run of 3 steps on the CPU. Beside each image that passes,
`dist/` gets its bill of materials and its provenance. The environment's variables stand in `settings`.
"""

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime

from scripts.images import commands, records, smoke_test
from scripts.images.commands import Base, build_command, step
from scripts.images.settings import ROOT, ImageError, Settings, read

TARGETS = ("operator", "trainer")


def main() -> int:
    try:
        settings = read(os.environ)
        base = base_image(settings)
        for target in TARGETS:
            _make(settings, target, base)
    except ImageError as error:
        print(f"make images: {error}", file=sys.stderr)
        return 1
    images = " ".join(settings.image(target) for target in TARGETS)
    print(f"built and tried: {images} (the trainer for {settings.accelerator})")
    return 0


def _make(settings: Settings, target: str, base: Base | None) -> None:
    started, at = datetime.now(UTC), revision()
    step(f"build {target} with {settings.tool}", build_command(settings, target, at, base))
    finished = datetime.now(UTC)
    smoke_test.run(settings, target, at)
    bill = f"{target}-bill"
    step(f"{target}: what looks into it", build_command(settings, bill, at, base))
    for path in records.write(settings, target, base or pinned_base(), at, (started, finished)):
        print(f"   {path.relative_to(ROOT)}")
    commands.output([settings.tool, "rmi", settings.image(bill)])


def base_image(settings: Settings) -> Base | None:
    """Return the base image that the environment asks for, None for the Dockerfile's.

    Raises ImageError for one without a digest that the tool does not have either.
    """
    name = settings.python_image
    if not name:
        return None
    _, is_pinned, digest = name.partition("@sha256:")
    if is_pinned:
        return Base(name, f"sha256:{digest}")
    try:
        return Base(name, commands.image_id(settings, name))
    except ImageError as error:
        raise ImageError(
            f"PYTHON_IMAGE: {name}: expected NAME@sha256:…, or an image that {settings.kind} has; "
            f"hint: {settings.kind} pull {name}"
        ) from error


def pinned_base() -> Base:
    """Return the base image that the Dockerfile names."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    values = dict(
        line.removeprefix("ARG ").split("=", 1) for line in lines if line.startswith("ARG PYTHON_") and "=" in line
    )
    digest = values["PYTHON_DIGEST"]
    return Base(values["PYTHON_IMAGE"].replace("${PYTHON_DIGEST}", digest), digest)


def revision() -> str:
    """Return the commit that is checked out, with -dirty where files differ from it; nothing where git cannot say."""
    if not shutil.which("git"):
        return ""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
