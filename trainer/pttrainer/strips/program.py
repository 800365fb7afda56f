"""The machine code of a product, made once in a process and known to XLA by a name."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from functools import lru_cache
from typing import Any

import jax

from pttrainer.strips import handler, tile
from pttrainer.strips.tile import Tile


@lru_cache
def host_tile() -> Tile | None:
    """The tile for this processor; None where there is no code for it, or nothing to make it with."""
    if os.name != "posix" or sys.maxsize < 2**32 or importlib.util.find_spec("llvmlite") is None:
        return None
    from llvmlite import binding  # a large library: loaded where it is used

    return tile.tile_for(binding.get_host_cpu_features())


@lru_cache
def registered(of: Tile) -> str:
    """The name by which XLA finds the product."""
    _compiled(of)
    return of.name


@lru_cache
def _compiled(of: Tile) -> tuple[Any, ...]:
    """What must live as long as the code does."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    module = binding.parse_assembly("\n".join((tile.code(of), handler.code(of))))
    module.verify()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(engine.get_function_address("handler"))
    jax.ffi.register_ffi_target(of.name, jax.ffi.pycapsule(function), platform="cpu")
    return engine, function
