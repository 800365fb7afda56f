"""Lets the tests of this folder share `operator_world`, a small cluster in memory, and gives them one."""

import pytest
from tests.builders.operator.cloud_site import Site
from tests.builders.operator.world import Api, Operator, World

from ptoperator.observe import run_directory


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """An empty cluster, whose run directories are a dict."""
    made = World(Api())
    monkeypatch.setattr(run_directory, "_read_bytes", lambda uri: made.files.get(uri))
    monkeypatch.setattr(run_directory, "_list_files", lambda folder: _names(made.files, folder))
    return made


def _names(files: dict[str, bytes], folder: str) -> list[str]:
    return sorted(name.rpartition("/")[2] for name in files if name.startswith(f"{folder}/"))


@pytest.fixture
def operator(world: World) -> Operator:
    return Operator(world)


@pytest.fixture
def site(world: World) -> Site:
    """The small cluster with a pretended GKE."""
    return Site(world)
