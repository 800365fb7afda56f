"""The machine code, made once in a process and known to XLA by names."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from functools import lru_cache
from typing import Any

import jax

from pttrainer.models.cpu_kernels import attention, blocked_matmul, register_tile, thread_pool, xla_ffi
from pttrainer.models.cpu_kernels.register_tile import Tile


@lru_cache
def host_tile() -> Tile | None:
    """The tile for this processor; None where there is no code for it, or nothing to make it with."""
    if os.name != "posix" or sys.maxsize < 2**32 or importlib.util.find_spec("llvmlite") is None:
        return None
    from llvmlite import binding  # a large library: loaded where it is used

    return register_tile.tile_for(binding.get_host_cpu_features())


def target(name: str, of: Tile | None = None) -> str:
    """What XLA calls `strips.NAME` or `attention.NAME`, with tiles of this processor where no others are asked for."""
    of = of or host_tile()
    assert of is not None
    compiled(of)
    return _target(name, of)


@lru_cache
def compiled(of: Tile) -> dict[str, Any]:
    """The functions, which must live as long as XLA may call them, and beside them what they live in."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    parts = (xla_ffi.code(), register_tile.code(of), thread_pool.code(), blocked_matmul.code(of), attention.code(of))
    module = binding.parse_assembly("\n".join(parts))
    module.verify()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    functions = {name: handler(engine.get_function_address(name)) for name in (blocked_matmul.NAME, attention.NAME)}
    for name, function in functions.items():
        jax.ffi.register_ffi_target(_target(name, of), jax.ffi.pycapsule(function), platform="cpu")
    return {**functions, "engine": engine}


def _target(name: str, of: Tile) -> str:
    return f"{of.name}_{name}"
