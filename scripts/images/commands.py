"""Command lines of podman, buildah and docker, and running them."""

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scripts.images.settings import ROOT, ImageError, Settings

# chroot: buildah's other isolations need cgroups and a runtime, which containers and CI machines often lack.
BUILD = {"podman": ["build"], "buildah": ["build", "--layers", "--isolation=chroot"], "docker": ["build"]}
CONFINED = ["--rm", "-i", "--read-only", "--cap-drop=ALL", "--tmpfs=/tmp", "--tmpfs=/home/posttrain", "--entrypoint="]


@dataclass(frozen=True)
class Base:
    """The base image of a build. digest: `sha256:…`."""

    name: str
    digest: str


def build_command(settings: Settings, target: str, revision: str, base: Base | None = None) -> list[str]:
    """Return the command that builds a target, run in the repository's root. base: instead of the Dockerfile's."""
    command = [settings.tool, *BUILD[settings.kind], "--target", target]
    arguments = {
        "ACCELERATOR": settings.accelerator if target.startswith("trainer") else "",
        "REVISION": revision,
        "PYTHON_IMAGE": base.name if base else "",
        "PYTHON_DIGEST": base.digest if base else "",
    }
    for name, value in arguments.items():
        command += ["--build-arg", f"{name}={value}"] if value else []
    command += ["--secret", f"id=pip.conf,src={settings.pip_config}"] if settings.pip_config else []
    return [*command, *settings.build_flags, "-t", settings.image(target), "."]


@contextmanager
def container(settings: Settings, target: str) -> Iterator[list[str]]:
    """Yield the words before a command that runs it inside a target's image."""
    if settings.kind != "buildah":
        yield [settings.tool, "run", *CONFINED, *settings.run_flags, settings.image(target)]
        return
    name = output([settings.tool, "from", settings.image(target)])
    try:
        yield [settings.tool, "run", "--isolation=chroot", *settings.run_flags, name, "--"]
    finally:
        output([settings.tool, "rm", name])


def image_id(settings: Settings, image: str) -> str:
    """Return the digest of an image's configuration, which is the same in every registry."""
    form = "{{.FromImageID}}" if settings.kind == "buildah" else "{{.Id}}"
    return f"sha256:{_inspect(settings, image, form).removeprefix('sha256:')}"


def label(settings: Settings, image: str, key: str) -> str:
    """Return the value of an image's label; empty if it has none."""
    return _inspect(settings, image, '{{index CONFIG.Labels "KEY"}}'.replace("KEY", key))


def entrypoint(settings: Settings, image: str) -> list[str]:
    """Return what the image starts, one word a line in the tool's answer: `buildah run` does not know it."""
    return _inspect(settings, image, "{{range CONFIG.Entrypoint}}{{println .}}{{end}}").splitlines()


def _inspect(settings: Settings, image: str, form: str) -> str:
    config = ".OCIv1.Config" if settings.kind == "buildah" else ".Config"
    form = form.replace("CONFIG", config)
    return output([settings.tool, "inspect", "--type=image", f"--format={form}", image])


def step(what: str, command: list[str], stdin: str = "") -> None:
    """Run a command, its output on the terminal; raise ImageError with the step's name if it fails."""
    print(f"== {what}", flush=True)
    # Docker before 23 builds with BuildKit, which the Dockerfile's secrets need, only if asked.
    environ = os.environ | {"DOCKER_BUILDKIT": "1"}
    done = subprocess.run(command, cwd=ROOT, input=stdin, text=True, env=environ)
    if done.returncode:
        raise ImageError(f"{what}: exit code {done.returncode}; the command: {shlex.join(command)}")


def output(command: list[str]) -> str:
    """Return what a command prints; raise ImageError if it fails."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise ImageError(f"exit code {done.returncode}; the command: {shlex.join(command)}")
    return done.stdout.strip()
