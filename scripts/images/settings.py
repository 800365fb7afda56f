"""What `make images` is asked for. The environment is read here alone:

ACCELERATOR         what the trainer is for: cpu (unless set), tpu or cuda
REGISTRY            before the images' names: REGISTRY/posttrain-operator:VERSION
PYTHON_IMAGE        base image, instead of the Dockerfile's: by digest (NAME@sha256:…), or one that the tool has
PIP_CONFIG_FILE     pip's configuration while it builds (pip's own variable); no layer of an image has it
IMAGE_TOOL          podman, buildah or docker, or a path that ends so; unset: the first of them that is there
IMAGE_BUILD_FLAGS   more flags of the tool's `build`, as --network host
IMAGE_RUN_FLAGS     more flags of the tool's `run`
"""

import os
import shlex
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("podman", "buildah", "docker")
ACCELERATORS = ("cpu", "tpu", "cuda")


class ImageError(Exception):
    """What stops `make images`, for whoever called it."""


@dataclass(frozen=True)
class Settings:
    """What the environment asks for."""

    tool: str
    accelerator: str = "cpu"
    registry: str = ""
    python_image: str = ""
    pip_config: str = ""
    build_flags: tuple[str, ...] = ()
    run_flags: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Return the tool's own name."""
        return Path(self.tool).name

    def image(self, target: str) -> str:
        """Return the name and tag of a target's image."""
        return "/".join(filter(None, (self.registry.rstrip("/"), f"posttrain-{target}:{version()}")))


def project() -> dict[str, Any]:
    """Return what the project says of itself."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def version() -> str:
    """Return the version of the project."""
    return str(project()["version"])


def read(environ: Mapping[str, str]) -> Settings:
    """Return the settings; raise ImageError for a value that cannot be meant."""
    accelerator = environ.get("ACCELERATOR") or "cpu"
    if accelerator not in ACCELERATORS:
        raise ImageError(f"ACCELERATOR: {accelerator}: expected one of {', '.join(ACCELERATORS)}")
    return Settings(
        tool=_tool(environ.get("IMAGE_TOOL", "")),
        accelerator=accelerator,
        registry=environ.get("REGISTRY", ""),
        python_image=environ.get("PYTHON_IMAGE", ""),
        pip_config=_pip_config(environ.get("PIP_CONFIG_FILE", "")),
        build_flags=_flags("IMAGE_BUILD_FLAGS", environ),
        run_flags=_flags("IMAGE_RUN_FLAGS", environ),
    )


def _tool(wanted: str) -> str:
    if wanted and Path(wanted).name not in TOOLS:
        raise ImageError(f"IMAGE_TOOL: {wanted}: expected one of {', '.join(TOOLS)}, or a path that ends so")
    for name in [wanted] if wanted else TOOLS:
        if shutil.which(name):
            return name
    missing = f"IMAGE_TOOL: {wanted}: no such program" if wanted else "no program to build images with is on PATH"
    raise ImageError(f"{missing}; hint: install podman, buildah (needs no daemon) or docker")


def _pip_config(name: str) -> str:
    if name in ("", os.devnull):
        return ""
    if not Path(name).is_file():
        raise ImageError(f"PIP_CONFIG_FILE: {name}: expected a file; hint: unset it to build with PyPI")
    return str(Path(name).resolve())


def _flags(name: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    value = environ.get(name, "")
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ImageError(f"{name}: {value}: expected words as for a shell ({error})") from None
