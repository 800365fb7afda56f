"""The same recipe for a program that builds images: a Containerfile, and podman or docker that read it."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from ptctl.cluster.images.build import Recipe
from ptctl.errors import CliError, InputError


def text(recipe: Recipe) -> str:
    """Return the Containerfile."""
    variables = "".join(
        f"ENV {name}={json.dumps(value)}\n" for name, _, value in (e.partition("=") for e in recipe.env)
    )
    return f"FROM {recipe.base}\nCOPY . {recipe.place}\nWORKDIR {recipe.place}\n{variables}"


def build(recipe: Recipe, program: str) -> str:
    """Build and push with podman or docker; return the image's name by digest."""
    if shutil.which(program) is None:
        raise CliError(f"--with {program}: it is not installed", "leave out --with: ptctl builds it itself")
    if not recipe.directory.is_dir():
        raise InputError(f"{recipe.directory}: not a directory; accepted: the directory whose files go into the image")
    with tempfile.TemporaryDirectory(prefix="posttrain-image-") as folder:
        file = Path(folder) / "Containerfile"
        file.write_text(text(recipe))
        flags = ["--platform", recipe.platform, "-f", str(file), "-t", str(recipe.tag)]
        _run([program, "build", *flags, str(recipe.directory)])
        if program == "podman":
            digest = Path(folder) / "digest"
            _run([program, "push", "--digestfile", str(digest), str(recipe.tag)])
            return recipe.tag.at(digest.read_text().strip())
        _run([program, "push", str(recipe.tag)])
        names = json.loads(_run([program, "inspect", "--format", "{{json .RepoDigests}}", str(recipe.tag)]))
    return next(str(name) for name in names if str(name).startswith(f"{recipe.tag.registry}/{recipe.tag.repository}@"))


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CliError(f"{' '.join(command[:2])} exits with code {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout
