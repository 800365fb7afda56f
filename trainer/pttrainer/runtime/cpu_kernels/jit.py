"""The machine code, compiled once per process and registered with XLA by name."""

import ctypes
import importlib.util
import os
import sys
import threading
from functools import lru_cache
from typing import Any

import jax

from pttrainer.runtime.cpu_kernels import (
    blocked_matmul,
    cached_attention,
    packed_attention,
    register_tile,
    thread_pool,
    xla_ffi,
)
from pttrainer.runtime.cpu_kernels.register_tile import RegisterTile

NAMES = (blocked_matmul.NAME, cached_attention.NAME, packed_attention.FORWARD, packed_attention.BACKWARD)
"""Names of the functions that XLA calls."""
_ONE_AT_A_TIME = threading.Lock()
"""Programs are traced on several threads, and XLA takes a name once."""


@lru_cache
def host_tile() -> RegisterTile | None:
    """Return the register tile for this processor; None if it is unsupported or llvmlite is missing."""
    if os.name != "posix" or sys.maxsize < 2**32 or importlib.util.find_spec("llvmlite") is None:
        return None
    from llvmlite import binding  # a large library: loaded where it is used

    return register_tile.tile_for(binding.get_host_cpu_features())


def target(name: str, tile: RegisterTile) -> str:
    """Return the name under which XLA calls one of `NAMES`."""
    with _ONE_AT_A_TIME:
        compile_kernels(tile)
    return _target(name, tile)


@lru_cache
def compile_kernels(tile: RegisterTile) -> dict[str, Any]:
    """Compile the functions, and return them with the engine that keeps them alive."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    parts = (
        xla_ffi.code(),
        register_tile.code(tile),
        thread_pool.code(),
        blocked_matmul.code(tile),
        cached_attention.code(tile),
        packed_attention.code(),
    )
    module = binding.parse_assembly("\n".join(parts))
    module.verify()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    passes = binding.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.run(module, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options()))
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    functions = {name: handler(engine.get_function_address(name)) for name in NAMES}
    for name, function in functions.items():
        jax.ffi.register_ffi_target(_target(name, tile), jax.ffi.pycapsule(function), platform="cpu")
    return {**functions, "engine": engine}


def _target(name: str, tile: RegisterTile) -> str:
    return f"{tile.name}_{name}"
