"""What an image's builder sees of this checkout: the files that .dockerignore lets through and the Dockerfile copies.

.dockerignore is read as Docker reads it: the last line that matches a path, or a directory above it, decides; `!` lets
through. Its patterns here are names, paths, `*` and `**/`; a line that needs more is refused, not guessed.
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


def is_let_through(path: str, ignore: str) -> bool:
    """Whether a file of the checkout is in the build context. ignore: .dockerignore's text."""
    let_through = True
    for line in (line.strip() for line in ignore.splitlines()):
        if line and not line.startswith("#") and _matches(path, line.removeprefix("!")):
            let_through = line.startswith("!")
    return let_through


def _matches(path: str, pattern: str) -> bool:
    if re.search(r"[][?\\!]|\*\*(?!/)", pattern) or pattern != pattern.strip("/"):
        raise ValueError(f".dockerignore: {pattern}: names, paths, * and **/ are understood; hint: teach {__file__}")
    expression = re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
    above = [str(parent) for parent in PurePosixPath(path).parents if parent.name]
    return any(re.fullmatch(expression, part) for part in (path, *above))


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
        if is_let_through(file, ignore)
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
