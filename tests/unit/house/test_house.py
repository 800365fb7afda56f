"""Rules about the repository itself."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".txt", ".cfg", ".tpl", ""}


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listing.decode().split("\0") if name and (ROOT / name).is_file()]


def test_no_tracked_file_is_ignored() -> None:
    command = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert tracked == "", "the wheel leaves out what .gitignore names"


@pytest.mark.parametrize("root", ["api", "kube", "operator", "trainer", "cli", "python"])
def test_source_roots_are_not_packages(root: str) -> None:
    assert not (ROOT / root / "__init__.py").exists()


def test_collections_imports_from_the_repository_root() -> None:
    code = "import collections, operator; assert operator.add(1, 2) == 3"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_api_imports_nothing_heavy() -> None:
    code = (
        "import sys, ptapi.spec, ptapi.status, ptapi.run_directory, ptapi.failures, ptapi.load, ptapi.crd.definition\n"
        "heavy = {'jax', 'kopf', 'kubernetes', 'rich', 'click', 'numpy', 'google', 'aiohttp'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_dependency_has_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    bare = [
        line.strip()
        for line in text.splitlines()
        if re.match(r'\s+"[A-Za-z0-9_.-]+(\[[a-z0-9]+\])?\s*(>=|==)', line) and "#" not in line
    ]
    assert bare == []


def test_trainer_has_fewer_than_twenty_direct_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(project["dependencies"]) + len(project["optional-dependencies"]["trainer"]) < 20


def test_every_direct_dependency_has_a_tested_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    names = {
        re.split(r"[\[<>=;]", line, maxsplit=1)[0].lower().replace("_", "-")
        for line in wanted
        if "==" not in line and not line.startswith("posttrain")
    }
    pinned = {
        line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    assert names <= pinned


def test_no_file_names_a_package_index_or_a_path_of_this_machine() -> None:
    index = re.compile(r"index-url|extra-index|/opt/pypi|/work/(main|venv|shared|team)")
    guard = Path(__file__).resolve()
    matches = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in tracked_files()
        if path.suffix in TEXT_SUFFIXES and path != guard
        for match in index.finditer(path.read_text(errors="ignore"))
    ]
    assert matches == []


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in tracked_files()
        if page.suffix == ".md"
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_every_room_has_a_readme() -> None:
    assert [
        room
        for room in ("api", "kube", "operator", "trainer", "cli", "python", "charts")
        if not (ROOT / room / "README.md").exists()
    ] == []


def test_quick_leaves_out_the_trainer_and_the_simulations_and_nothing_else() -> None:
    commands = subprocess.run(["make", "-n", "quick"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    line = next(line for line in commands.splitlines() if "pytest" in line)
    assert re.findall(r"tests/\S+|--ignore-glob=\S+", line.replace("--ignore=", "")) == [
        "tests/unit",
        "tests/unit/pttrainer",
        "--ignore-glob='*simulation.py'",
    ]
    assert (ROOT / "tests/unit/pttrainer").is_dir()
    assert "JAX_PLATFORMS=none" in line  # so that a test which computes with JAX fails there


BIGGER_ROOMS = (
    *(f"operator/ptoperator/{room}" for room in ("plan", "status", "observe", "capacity")),
    *(f"trainer/pttrainer/{room}" for room in ("training", "algorithms", "rollout", "data", "losses")),
    *(f"trainer/pttrainer/{room}" for room in ("preflight", "train_step", "models")),
    *(f"trainer/pttrainer/models/{room}" for room in ("families", "attention")),
    "cli/ptlocal/apiserver",
    "cli/ptctl/cluster",
    "cli/ptctl/importers",
)


@pytest.mark.parametrize("room", BIGGER_ROOMS)
def test_readme_of_a_bigger_room_names_every_entry_and_nothing_else(room: str) -> None:
    entries = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in (ROOT / room).iterdir()
        if path.name != "__init__.py" and (path.suffix == ".py" or (path / "__init__.py").exists())
    }
    listed = re.findall(r"^- (`[^:]+`):", (ROOT / room / "README.md").read_text(), re.MULTILINE)
    assert sorted(name for line in listed for name in re.findall(r"`([\w./]+)`", line)) == sorted(entries)


def test_a_folder_of_a_package_reads_like_a_table_of_contents() -> None:
    """At most 13 entries; 17 at the root of a package, beside README.md and `__init__.py`."""
    entries: dict[str, set[str]] = {}
    for path in tracked_files():
        parts = path.relative_to(ROOT).parts
        if parts[0] in ("api", "kube", "operator", "trainer", "cli", "python", "benchmarks"):
            for depth in range(1, len(parts)):
                entries.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
    counts = {folder: len(names - {"__init__.py", "README.md"}) for folder, names in entries.items()}
    most = {folder: 17 if folder.count("/") == 1 else 13 for folder in counts}  # 17 in a package's root
    assert {folder: count for folder, count in counts.items() if count > most[folder]} == {}
