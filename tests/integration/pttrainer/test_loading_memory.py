"""Loading takes what the devices hold and a little: `benchmarks/trainer/loading_memory.py` on 1 and 8 devices."""

from pathlib import Path

import pytest
from benchmarks.trainer import loading_memory

CONFIG = {**loading_memory.CONFIG, "vocab_size": 64_000, "hidden_size": 1024, "intermediate_size": 2816}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    directory = tmp_path_factory.mktemp("synthetic")
    return directory, loading_memory.write_checkpoint(directory, 350 * 10**6, CONFIG)


@pytest.mark.parametrize(("dtype", "devices"), loading_memory.WAYS)
def test_host_memory_beside_the_weights_stays_under_the_largest_tensor(
    checkpoint: tuple[Path, int], dtype: str, devices: int
) -> None:
    directory, largest = checkpoint
    measured = loading_memory.measured(directory, dtype, devices)
    assert measured["weights"] > 300e6 * (2 if dtype == "float32" else 1)
    assert measured["grew"] - measured["weights"] <= loading_memory.ALLOWED * largest
