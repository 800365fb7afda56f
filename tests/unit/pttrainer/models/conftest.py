"""What tests of machine code for CPUs share."""

import pytest

from pttrainer.runtime.cpu_kernels import jit
from pttrainer.runtime.cpu_kernels.register_tile import AVX512


@pytest.fixture
def wide_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 32 columns on any processor that runs the tests."""
    monkeypatch.setattr(jit, "host_tile", lambda: AVX512)
