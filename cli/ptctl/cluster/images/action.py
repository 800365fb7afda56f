"""From the flags of `ptctl image build` to the image's name on stdout."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ptctl.cluster.images import reference
from ptctl.cluster.images.build import Recipe, build
from ptctl.errors import InputError
from ptctl.ui.app import App


def recipe(directory: Path, base: str, tag: str, place: str, env: Sequence[str], platform: str) -> Recipe:
    """Return what is built. Raises InputError with the flag, its value and what is accepted."""
    target = reference.parse(tag, "--tag")
    if target.version.startswith("sha256:"):
        raise InputError(f"--tag {tag}: a digest; accepted: REGISTRY/NAME:TAG")
    if not re.fullmatch(r"/[\w./-]*\w", place) or ".." in place.split("/"):
        raise InputError(f"--path {place}: accepted: an absolute path, such as /app")
    wrong = next((each for each in env if not re.match(r"[A-Za-z_]\w*=", each)), None)
    if wrong is not None:
        raise InputError(f"--env {wrong}: accepted: NAME=VALUE")
    if not re.fullmatch(r"\w+/\w+", platform):
        raise InputError(f"--platform {platform}: accepted: OS/ARCHITECTURE, such as linux/amd64")
    return Recipe(directory, reference.parse(base, "--base"), target, place, env, platform)


def build_image(app: App, plan: Recipe, builder: str | None, project: str | None, *, pushes: bool) -> None:
    """Build the image, by itself or with another program, and print its name by digest."""
    if builder is None:
        app.console.data(build(plan, app.console.say, pushes=pushes))
        return
    if not pushes:
        raise InputError(f"--dry-run: {builder} would build it; accepted: without --with")
    from ptctl.cluster.images import cloud_build, container_file

    if builder == "cloud-build":
        app.console.data(cloud_build.build(plan, project, app.console.say))
    else:
        app.console.data(container_file.build(plan, builder))
