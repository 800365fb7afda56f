"""What an image's builder sees of this checkout: the files that .dockerignore lets through and the Dockerfile copies.

Both are held to plain forms, so that they can be read here as Docker reads them: .dockerignore leaves out everything,
lets paths through by name, and leaves out compiled modules at the end; the Dockerfile copies relative paths.
"""

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]


def tracked() -> list[str]:
    """Every file of the checkout, new ones included; not what git ignores."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]


def present(top: str) -> list[str]:
    """Every file below a path of this checkout, what git ignores included: a builder does not ask git."""
    path = ROOT / top
    return [str(file.relative_to(ROOT)) for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]


def let_through(ignore: str) -> list[str]:
    """The paths that .dockerignore lets through. ignore: its text."""
    first, *lines, last = ignore.split()
    if (first, last) != ("*", "**/__pycache__") or not all(re.fullmatch(r"![\w.]+(/[\w.]+)*", line) for line in lines):
        raise ValueError(".dockerignore: expected *, then lines of ! and a path, then **/__pycache__")
    return [line.removeprefix("!") for line in lines]


def copies(dockerfile: str, stage: str) -> Iterator[tuple[str, str]]:
    """(source, target) of every COPY of a stage, both relative to the context and the stage's working directory."""
    for words in _instructions(dockerfile, stage):
        if words[0] == "COPY":
            *sources, target = words[1:]
            if any(word.startswith(("--", "/")) or "*" in word for word in words[1:]):
                raise ValueError(
                    f"Dockerfile: {shlex.join(words)}: plain relative paths are understood; hint: teach {__file__}"
                )
            yield from ((source, _target(source, target)) for source in sources)


def _instructions(dockerfile: str, stage: str) -> Iterator[list[str]]:
    current = ""
    for line in dockerfile.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] == "FROM":
            current = words[-1]
        elif words and current == stage:
            yield words


def _target(source: str, target: str) -> str:
    """COPY puts a file below a target that ends in a slash; a directory's content goes into the target itself."""
    below = target.endswith("/") and (ROOT / source).is_file()
    return str(PurePosixPath(target) / PurePosixPath(source).name if below else PurePosixPath(target))


def copied(dockerfile: str, ignore: str, stage: str = "wheel") -> dict[str, str]:
    """File of the checkout → where it lies in the stage's working directory."""
    return {
        file: str(PurePosixPath(target) / PurePosixPath(file).relative_to(source))
        for source, target in copies(dockerfile, stage)
        for file in present(source)
        if "__pycache__" not in file and any(f"{file}/".startswith(f"{path}/") for path in let_through(ignore))
    }


def copied_now() -> dict[str, str]:
    """`copied`, of the Dockerfile and the .dockerignore that are there."""
    return copied((ROOT / "Dockerfile").read_text(), (ROOT / ".dockerignore").read_text())


def lay_out(files: dict[str, str], home: Path) -> None:
    """Copy files as the Dockerfile does."""
    for source, target in files.items():
        (home / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / source, home / target)


def included() -> dict[str, str]:
    """File of the checkout → its name in the wheel, by pyproject.toml: what a wheel of the whole checkout holds."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    tops = {package: PurePosixPath(package).name for package in wheel["packages"]} | wheel["force-include"]
    return {
        file: name + file.removeprefix(top)
        for top, name in tops.items()
        for file in tracked()
        if file == top or file.startswith(f"{top}/")
    }
