"""How tests compile: programs of tests run once or twice on tiny shapes, so what XLA spends on them is what counts."""

import threading
from typing import Any

FLAGS = " ".join(
    (
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_use_fusion_emitters=false",  # half of what is left: they go through MLIR, fusion by fusion
        "--xla_cpu_parallel_codegen_split_count=1",
    )
)
"""XLA's. They change how machine code is made, not what is computed; numbers may round differently."""

_USES = 200
"""Of a context: what it knows of types and constants is never freed."""


def share_ir_contexts() -> None:
    """Lower many programs in one MLIR context; jax makes one for each, and loading its dialects takes 2 ms."""
    from jax._src.interpreters import mlir  # here: a program that only reads FLAGS imports no jax

    make, of_thread = mlir.make_ir_context, threading.local()

    def shared() -> Any:
        if getattr(of_thread, "uses_left", 0) == 0:
            of_thread.context, of_thread.uses_left = make(), _USES
        of_thread.uses_left -= 1
        return of_thread.context

    mlir.make_ir_context = shared
