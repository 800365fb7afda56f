"""Every command block of the documents is run: here, by the test that stands above it, or not, for a reason that does.

A block without a mark is run here, with those that stand before it on its page, in one shell and an empty directory;
a YAML block after "Save this as `NAME`" is that file.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_BLOCK = re.compile(
    r"(?:<!-- (?P<kind>needs|run by): (?P<value>[^>]+) -->\n)?^```bash\n(?P<commands>.*?)^```"
    r"|^(?:Or s|S)ave this as `(?P<file>[^`]+)`:\n\n```yaml\n(?P<text>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


def pages() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listing.decode().split("\0") if name]


def unmarked(page: Path) -> list[re.Match[str]]:
    return [block for block in _BLOCK.finditer(page.read_text()) if block["commands"] and not block["kind"]]


@pytest.mark.parametrize("page", [page for page in pages() if unmarked(page)], ids=lambda page: page.name)
def test_the_commands_of_a_page_work_as_they_stand(page: Path, tmp_path: Path) -> None:
    script = []
    for block in _BLOCK.finditer(page.read_text()):
        if block["file"]:
            (tmp_path / block["file"]).write_text(_moved(block["text"], tmp_path))
        elif not block["kind"]:
            script.append(_moved(block["commands"], tmp_path))
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "POSTTRAIN_LOCAL_DIR": str(tmp_path / "local"),
        "KUBECONFIG": "",
    }
    shell = ["bash", "-euo", "pipefail", "-c", "trap 'ptctl local down >&2' EXIT\n" + "".join(script)]
    done = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def _moved(text: str, folder: Path) -> str:
    """Return commands or a file with this folder for /tmp, and without what only a person's machine has."""
    absent = ["source .venv"] + ([] if shutil.which("kubectl") else ["kubectl"])
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith(tuple(absent))]
    return "".join(lines).replace("/tmp/", f"{folder}/")
