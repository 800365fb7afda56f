"""How tests compile: programs of tests run once or twice on tiny shapes, so what XLA spends on them is what counts."""

FLAGS = " ".join(
    (
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_use_fusion_emitters=false",  # half of what is left: they go through MLIR, fusion by fusion
        "--xla_cpu_parallel_codegen_split_count=1",
    )
)
"""XLA's. They change how machine code is made, not what is computed; numbers may round differently."""
