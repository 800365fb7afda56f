"""Whether this process has machine code for its processor (`cpu_kernels`), a folder that JAX can replace entirely."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pttrainer.runtime.cpu_kernels.register_tile import RegisterTile


def tile() -> RegisterTile | None:
    """Return the register tile of the machine code; None without the folder or llvmlite, or on other processors."""
    if importlib.util.find_spec("pttrainer.runtime.cpu_kernels") is None:
        return None
    from pttrainer.runtime.cpu_kernels import jit

    return jit.host_tile()
