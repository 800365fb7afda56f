"""A real vLLM needs an environment of its own: `make vllm`. Elsewhere there is nothing to collect."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]

if importlib.util.find_spec("vllm"):
    from tests.builders.vllm.real import RealServer

    @pytest.fixture(scope="session")
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
        """One that renews all weights and takes adapters; it begins with other weights than any test's."""
        made = RealServer(tmp_path_factory.mktemp("server"))
        made.start()
        yield made
        made.kill()

    @pytest.fixture
    def shared(tmp_path: Path) -> Path:
        """Where weights are laid down."""
        return tmp_path / "shared"
