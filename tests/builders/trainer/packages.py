"""A Python package made on the spot, and an index of pip's that holds nothing else."""

import zipfile
from pathlib import Path


def wheel(directory: Path, name: str, version: str, source: str) -> Path:
    """A wheel of one module, in a directory for `PIP_FIND_LINKS`."""
    directory.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for file, content in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(file, content)
    return directory


def only(directory: Path) -> dict[str, str]:
    """Variables by which pip finds these wheels and asks no network."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(directory), "XDG_CACHE_HOME": str(directory / "cache")}
