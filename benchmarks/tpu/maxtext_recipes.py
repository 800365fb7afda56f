"""MaxText's published recipes for the shapes in which our train step is compared with its own, by name.

Also how it would train models, or on slices, for which it has none. Each with what was changed in it, and why. Flags
and settings are those of MaxText's table for the generation (`benchmarks/maxtext_*_model_configs.py`,
`benchmarks/xla_flags_library.py`) or of tpu-recipes. Left out of all of them: what no program depends on (data,
checkpoints, profiles). Tiles of splash attention are at most 1,024: those of 2,048 take the compiler minutes, and are
2 % cheaper.
"""

from typing import NamedTuple


class Recipe(NamedTuple):
    """A shape, and how MaxText trains it.

    rows: of all devices; changed: what is not as its source has it; remat: our policy; sequence: devices that share a
    row's tokens.
    """

    accelerator: str
    model: str
    rows: int
    length: int
    settings: tuple[str, ...]
    flags: tuple[str, ...]
    source: str
    changed: str
    remat: str = "auto"
    sequence: int = 1


FUSED_GATHERS = (
    "--xla_tpu_enable_async_collective_fusion=true",
    "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
    "--xla_tpu_enable_async_collective_fusion_multiple_steps=true",
    "--xla_tpu_overlap_compute_collective_tc=true",
    "--xla_enable_async_all_gather=true",
)
"""CF_FOR_ALL_GATHER."""
DATA_PARALLEL = (
    "--xla_tpu_enable_data_parallel_all_reduce_opt=true",
    "--xla_tpu_data_parallel_opt_different_sized_ops=true",
)
"""DATA_PARALLEL_OVERLAP."""
SUM_LAYOUT = (
    "--xla_tpu_use_minor_sharding_for_major_trivial_input=true",
    "--xla_tpu_relayout_group_size_threshold_for_reduce_scatter=1",
    "--xla_tpu_assign_all_reduce_scatter_layout=true",
)
"""LAYOUT_FOR_ALL_REDUCE_SCATTER."""
SPARSE_CORE_SUMS = (
    "--xla_tpu_enable_async_collective_fusion_fuse_all_reduce=false",
    "--xla_tpu_enable_sparse_core_collective_offload_all_reduce=true",
    "--xla_tpu_enable_all_reduce_offload_tracing=true",
    "--xla_tpu_use_tc_device_shape_on_sc=true",
    "--xla_sc_enable_instruction_fusion=false",
    "--xla_sc_disable_megacore_partitioning=true",
)
"""ENABLE_SPARSECORE_OFFLOADING_FOR_ALL_REDUCE, but for a flag that libtpu 0.0.42.1 does not know."""
HOST_OFFLOAD = (
    "--xla_tpu_enable_all_experimental_scheduler_features=true",
    "--xla_tpu_enable_scheduler_memory_pressure_tracking=true",
    "--xla_tpu_host_transfer_overlap_limit=24",
    "--xla_tpu_aggressive_opt_barrier_removal=ENABLED",
    "--xla_lhs_prioritize_async_depth_over_stall=ENABLED",
    "--xla_tpu_enable_ag_backward_pipelining=true",
    "--xla_should_allow_loop_variant_parameter_in_chain=ENABLED",
    "--xla_should_add_loop_invariant_op_in_chain=ENABLED",
    "--xla_max_concurrent_host_send_recv=100",
    "--xla_tpu_scheduler_percent_shared_memory_limit=100",
    "--xla_latency_hiding_scheduler_rerun=2",
)
"""HOST_OFFLOAD_FLAGS."""
DENSE_VMEM, MOE_VMEM, GEMMA2_VMEM, GEMMA_VMEM, TPU7X_VMEM = (
    (f"--xla_tpu_scoped_vmem_limit_kib={kib}",) for kib in ("98304", "81920", "114688", "122880", "61440")
)
"""DENSE_VMEM_LIMIT_FLAG, MOE_VMEM_LIMIT_FLAG, of Gemma CUSTOM_VMEM_LIMIT_FLAG; of tpu-recipes for tpu7x.

The compiler takes many times as long.
"""
NO_WINDOWED_EINSUM = ("--xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000",)
"""DISABLE_COLLECTIVE_MATMUL."""
SHARDED = ("ici_fsdp_parallelism=-1", "attention=flash", "use_iota_embed=True", "weight_dtype=float32")
OFFLOADED = tuple(f"{part}=offload" for part in ("decoder_layer_input", "query_proj", "key_proj", "value_proj"))
TILES_OF_V6E = (
    *("sa_block_q=1024", "sa_block_kv=1024", "sa_block_kv_compute=512", "sa_block_q_dkv=512"),
    *("sa_block_kv_dkv=2048", "sa_block_kv_dkv_compute=512", "sa_block_q_dq=1024", "sa_block_kv_dq=1024"),
)
TILES_OF_1024 = tuple(
    f"sa_block_{block}=1024" for block in ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute")
)
TILES_OF_NO_RECIPE = (
    *(f"sa_block_{block}=1024" for block in ("q", "kv", "q_dkv", "kv_dkv", "q_dq", "kv_dq")),
    *("sa_block_kv_compute=512", "sa_block_kv_dkv_compute=512"),
)
FUSED_BACKWARD = "sa_use_fused_bwd_kernel=True"
TILES_OF_FEW_QUERIES = ("sa_block_q=1024", "sa_block_q_dkv=1024", "sa_block_q_dq=1024")
MIXTURE = ("megablox=True", "sparse_matmul=True", "num_vocab_tiling=8")
"""Of a mixture that drops no token, with the loss in pieces."""
DROPLESS = (*SHARDED, "remat_policy=full", *MIXTURE, *TILES_OF_FEW_QUERIES)
GEMMA2 = (
    *("ici_fsdp_transpose_parallelism=256", "ici_fsdp_parallelism=1", "attention=flash", "use_iota_embed=True"),
    *("weight_dtype=float32", "remat_policy=full", *TILES_OF_FEW_QUERIES),
)
"""Of both sizes, on 256 chips."""


OF_TPU7X = (
    "--xla_tpu_scoped_vmem_limit_kib=65536",
    "--xla_tpu_bf16_emission_mode=NATIVE_EMISSION",
    "--xla_tpu_enable_sparse_core_collective_offload_all_gather=true",
    "--xla_tpu_enable_sparse_core_collective_offload_2d_all_gather=true",
    "--xla_tpu_enable_sparse_core_collective_offload_3d_all_gather=true",
    "--xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter=true",
    "--xla_tpu_enable_sparse_core_collective_offload_all_reduce=true",
    "--xla_tpu_enable_sparse_core_collective_offload_reduce_scatter=true",
    "--xla_tpu_enable_sparse_core_reduce_scatter_v2=true",
    "--xla_tpu_use_single_sparse_core_for_all_gather_offload=true",
    "--xla_tpu_use_tc_device_shape_on_sc=true",
    "--xla_sc_disable_megacore_partitioning=true",
    "--xla_enable_async_all_gather=true",
    "--xla_tpu_prefer_async_allgather_to_allreduce=true",
    "--xla_tpu_enable_latency_hiding_layer_scheduler=true",
    "--xla_tpu_enable_layer_scheduler_for_dependent_collectives=true",
    "--xla_tpu_scheduler_percent_shared_memory_limit=150",
    "--xla_tpu_enable_sparse_core_collective_aggregator=true",
    "--xla_tpu_enable_all_gather_offload_tracing=true",
)
"""Of tpu-recipes, training/ironwood: Gemma 4."""
_OF_JAX = "JAX's own splash attention for tokamax's; tiles"


def _like(
    source: str, accelerator: str, model: str, rows: int, length: int, *flags: str, own: tuple[str, ...] = ()
) -> Recipe:
    """Return how MaxText would train a model, or on a slice, without a recipe of its own, with the source's flags.

    own: further settings.
    """
    settings = (*SHARDED, "remat_policy=full", *TILES_OF_NO_RECIPE, *own)
    changed = "the model, or its slice, of which there is no recipe; full recomputation; tiles"
    return Recipe(accelerator, model, rows, length, settings, flags, source, changed, remat="full")


_V6E = "maxtext_trillium_model_configs.py: llama3_1_8b_8192_no_collective_matmul"
_OF_V6E = (*DENSE_VMEM, *SUM_LAYOUT, *DATA_PARALLEL, *FUSED_GATHERS, *NO_WINDOWED_EINSUM)
_DROPLESS = "maxtext_trillium_model_configs.py: mixtral_8x7b_dropless"
_OF_DROPLESS = (*MOE_VMEM, *FUSED_GATHERS, *DATA_PARALLEL)
_V5P, _OF_V5P = "maxtext_v5p_model_configs.py: llama2_70b_v5p_128", (*DATA_PARALLEL, *FUSED_GATHERS)

RECIPES: dict[str, Recipe] = {
    "llama3.1-8b-v5p-16": Recipe(
        *("v5p-16", "llama3.1-8b", 32, 4096),
        ("ici_fsdp_parallelism=-1", "remat_policy=full", "attention=flash", "weight_dtype=float32"),
        (),
        "MaxText's defaults",
        "full recomputation",
    ),
    "llama3.1-8b-v6e-16": Recipe(
        *("v6e-16", "llama3.1-8b", 48, 8192),
        (
            *(*SHARDED, "remat_policy=custom", *OFFLOADED, "out_proj=offload"),
            *(*TILES_OF_V6E, FUSED_BACKWARD),
        ),
        (*_OF_V6E, *SPARSE_CORE_SUMS, *HOST_OFFLOAD),
        "maxtext_trillium_model_configs.py: llama3_1_8b_8192_no_collective_matmul; tpu-recipes, trillium, v6e-16",
        "tiles",
    ),
    "mixtral-8x7b-v6e-256": Recipe(
        *("v6e-256", "mixtral-8x7b", 2560, 4096),
        (*SHARDED, "remat_policy=full", "megablox=True", "sparse_matmul=True", *TILES_OF_FEW_QUERIES),
        _OF_DROPLESS,
        _DROPLESS,
        "10 rows a chip, as with its 12 MaxText 0.2.2 takes 31.5 of 31.25 GiB here; tiles",
    ),
    "qwen3-30b-a3b-v6e-64": Recipe(
        *("v6e-64", "qwen3-30b-a3b", 768, 4096),
        DROPLESS,
        _OF_DROPLESS,
        _DROPLESS,
        "the model, of which there is no recipe for a v6e; 64 chips for 256; the loss in 8 pieces of tokens, because "
        "logits of 151,936 words are 30 GB a chip; tiles",
    ),
    "gpt-oss-20b-v6e-64": Recipe(
        *("v6e-64", "gpt-oss-20b", 512, 4096),
        (*DROPLESS, "weight_dtype=bfloat16"),
        _OF_DROPLESS,
        _DROPLESS,
        "the model, of which there is no recipe for a v6e; 64 chips for 256; the loss in 8 pieces of tokens; tiles; "
        "parameters in bfloat16, without which MaxText 0.2.2 cannot differentiate the sinks",
    ),
    "gemma2-9b-v6e-256": Recipe(
        *("v6e-256", "gemma2-9b", 768, 8192),
        GEMMA2,
        (*GEMMA2_VMEM, *SUM_LAYOUT, *FUSED_GATHERS),
        "maxtext_trillium_model_configs.py: gemma2_9b_8192",
        "tiles",
    ),
    "gemma3-12b-v6e-256": Recipe(
        *("v6e-256", "gemma3-12b", 256, 32768),
        (
            *(*SHARDED, "num_vocab_tiling=16", "remat_policy=custom", "decoder_layer_input=device"),
            *("query_proj=remat", "key_proj=remat", "value_proj=remat"),
            *("sa_block_q=1024", "sa_block_kv=1024", "sa_block_kv_compute=1024", "sa_block_q_dkv=512"),
            *("sa_block_kv_dkv=2048", "sa_block_kv_dkv_compute=512", "sa_block_q_dq=1024", "sa_block_kv_dq=1024"),
        ),
        GEMMA_VMEM,
        "maxtext_trillium_model_configs.py: gemma3_12b_32768_v6e256",
        "nothing",
    ),
    "llama3.1-70b-v5p-128": Recipe(
        *("v5p-128", "llama3.1-70b", 128, 4096),
        (*SHARDED, "remat_policy=save_dot_except_mlpwi"),
        (*DATA_PARALLEL, *FUSED_GATHERS),
        "maxtext_v5p_model_configs.py: llama2_70b_v5p_128",
        "Llama 3.1 for Llama 2, which has 32,000 words in place of 128,256",
    ),
    "llama3.1-405b-v5p-1024": Recipe(
        *("v5p-1024", "llama3.1-405b", 1024, 8192),
        (
            *(*SHARDED, "remat_policy=custom", "context=offload", "mlpwo=offload", "num_vocab_tiling=4"),
            *(*TILES_OF_1024, "sa_block_q_dq=1024", "sa_block_kv_dq=1024"),
        ),
        (*DENSE_VMEM, *FUSED_GATHERS, *HOST_OFFLOAD),
        "maxtext_v5p_model_configs.py: llama3_1_405b_8192_v5p_1024",
        "tiles",
    ),
    "llama4-scout-v5p-256": Recipe(
        *("v5p-256", "llama4-scout", 1024, 8192),
        (
            *(*SHARDED, "model_name=llama4-17b-16e", "remat_policy=custom", "decoder_layer_input=offload"),
            *("megablox=True", "sparse_matmul=True", *TILES_OF_1024, "sa_block_q_dq=1024", "sa_block_kv_dq=1024"),
        ),
        (*MOE_VMEM, *FUSED_GATHERS, *DATA_PARALLEL, *SUM_LAYOUT, *HOST_OFFLOAD),
        "maxtext_v5p_model_configs.py: llama4_scout_dropless_v5p_256",
        "tiles",
    ),
    "llama3.1-8b-v5e-256": Recipe(
        *("v5e-256", "llama3.1-8b", 512, 8192),
        (
            *(*SHARDED, "remat_policy=custom", *OFFLOADED, "out_proj=offload"),
            *(*TILES_OF_1024, "sa_block_q_dq=1024", "sa_block_kv_dq=1024", FUSED_BACKWARD),
        ),
        (*DENSE_VMEM, *SUM_LAYOUT, *DATA_PARALLEL, *FUSED_GATHERS, *HOST_OFFLOAD),
        "maxtext_v5e_model_configs.py: llama3_1_8b_8192_v5e_256",
        "bfloat16 products in place of its int8 (use_qwix_quantization); tiles; without the flags of SparseCores, "
        "which a v5e lacks",
    ),
    "llama3.1-70b-v6e-256": Recipe(
        *("v6e-256", "llama3.1-70b", 1280, 8192),
        (
            *(*SHARDED, "remat_policy=custom", *OFFLOADED),
            *(*TILES_OF_V6E, FUSED_BACKWARD),
        ),
        (*DENSE_VMEM, *SUM_LAYOUT, *DATA_PARALLEL, *FUSED_GATHERS, *HOST_OFFLOAD),
        "maxtext_trillium_model_configs.py: llama3_1_70b_8192",
        "tiles",
        remat="offload-input-context",
    ),
    "llama3.1-70b-tpu7x-128": Recipe(
        *("tpu7x-128", "llama3.1-70b", 256, 8192),
        (
            *(*SHARDED, "remat_policy=custom"),
            *(f"{part}=device" for part in ("decoder_layer_input", "context", "query_proj", "key_proj", "value_proj")),
            *("qkv_proj=device", "sa_q_layout=SEQ_MINOR", "sa_k_layout=SEQ_MINOR", "sa_v_layout=HEAD_DIM_MINOR"),
            *(*TILES_OF_1024, FUSED_BACKWARD),
        ),
        (
            *TPU7X_VMEM,
            "--xla_tpu_bf16_emission_mode=NATIVE_EMISSION",
            "--xla_tpu_enable_sparse_core_collective_offload_all_reduce=true",
            "--xla_tpu_use_single_sparse_core_for_all_gather_offload=true",
        ),
        "tpu-recipes, training/ironwood/llama3.1-70b/8k-bf16-tpu7x-4x4x4",
        f"moments in float32, as ours; {_OF_JAX}",
    ),
    "llama3.1-70b-128k-tpu7x-512": Recipe(
        *("tpu7x-512", "llama3.1-70b", 64, 131072),
        (
            *("ici_fsdp_parallelism=-1", "ici_context_parallelism=8", "attention=flash", "use_iota_embed=True"),
            *("weight_dtype=float32", "num_vocab_tiling=4", "remat_policy=custom", "mlpwo=device"),
            *(f"{part}=device" for part in ("decoder_layer_input", "context", "query_proj", "key_proj", "value_proj")),
            *("sa_q_layout=SEQ_MINOR", "sa_k_layout=HEAD_DIM_MINOR", "sa_v_layout=SEQ_MINOR"),
            *("sa_block_q=1024", "sa_block_kv=1024", "sa_block_kv_compute=512", "sa_block_q_dkv=1024"),
            *("sa_block_kv_dkv=4096", "sa_block_kv_dkv_compute=512", FUSED_BACKWARD),
        ),
        OF_TPU7X,
        "tpu-recipes, training/ironwood/llama3.1-70b/128k-bf16-tpu7x-4x8x8",
        f"flags of Gemma 4's recipes; moments in float32, as ours; {_OF_JAX}, but for those of 4,096 keys",
        sequence=8,
    ),
    "mistral-7b-v6e-256": Recipe(
        *("v6e-256", "mistral-7b", 1536, 8192),
        (
            *(*SHARDED, "remat_policy=custom", *OFFLOADED, "out_proj=offload"),
            *(*TILES_OF_1024, FUSED_BACKWARD),
        ),
        (*_OF_V6E, *SPARSE_CORE_SUMS, *HOST_OFFLOAD),
        "maxtext_trillium_model_configs.py: mistral_7b",
        "tiles",
    ),
    "gemma2-27b-v6e-256": Recipe(
        *("v6e-256", "gemma2-27b", 512, 8192),
        GEMMA2,
        (*GEMMA_VMEM, *SUM_LAYOUT, *FUSED_GATHERS),
        "maxtext_trillium_model_configs.py: gemma2_27b_8192",
        "tiles",
    ),
    "gemma4-31b-tpu7x-128": Recipe(
        *("tpu7x-128", "gemma4-31b", 512, 8192),
        (
            *("ici_fsdp_parallelism=16", "ici_fsdp_transpose_parallelism=8", "attention=flash", "use_iota_embed=True"),
            *("weight_dtype=float32", "num_vocab_tiling=8", "remat_policy=full"),
            *(*TILES_OF_1024, FUSED_BACKWARD),
        ),
        OF_TPU7X,
        "tpu-recipes, training/ironwood/gemma4-31b/8k-bf16-tpu7x-4x4x4",
        "full recomputation, as its own policy takes 95.4 GiB of 94.8 here; gathers in one stage, as "
        f"MaxText 0.2.2 knows no other; {_OF_JAX}",
        remat="full",
    ),
    "gemma4-26b-tpu7x-128": Recipe(
        *("tpu7x-128", "gemma4-26b-a4b", 2048, 4096),
        (
            *(*SHARDED, "model_name=gemma4-26b", "remat_policy=full", "megablox=True", "sparse_matmul=True"),
            *(f"w{part}_tile_{of}_embed_dim=2816" for part in "io" for of in ("fwd", "dlhs", "drhs")),
            *(f"w{part}_tile_{of}_mlp_dim=704" for part in "io" for of in ("fwd", "dlhs", "drhs")),
            *(*TILES_OF_1024, FUSED_BACKWARD),
        ),
        OF_TPU7X,
        "tpu-recipes, training/ironwood/gemma4-26b/4k-bf16-tpu7x-4x4x4",
        _OF_JAX,
    ),
    "qwen3-235b-a22b-tpu7x-512": Recipe(
        *("tpu7x-512", "qwen3-235b-a22b", 8192, 4096),
        (
            *("ici_fsdp_parallelism=-1", "attention=flash", "weight_dtype=float32", "remat_policy=custom"),
            *("decoder_layer_input=offload", "megablox=True", "sparse_matmul=True", *TILES_OF_1024, FUSED_BACKWARD),
        ),
        (
            *TPU7X_VMEM,
            "--xla_tpu_enable_sparse_core_collective_offload_all_gather=true",
            "--xla_tpu_enable_sparse_core_collective_offload_all_reduce=true",
            "--xla_tpu_use_single_sparse_core_for_all_gather_offload=true",
            *HOST_OFFLOAD,
        ),
        "tpu-recipes, training/ironwood/qwen3-235b-a22b/4k-bf16-tpu7x-4x8x8",
        f"megablox' kernel for tokamax's; {_OF_JAX}",
        remat="offload-input",
    ),
    "gpt-oss-120b-tpu7x-128": Recipe(
        *("tpu7x-128", "gpt-oss-120b", 1280, 8192),
        (
            *("ici_fsdp_parallelism=64", "ici_data_parallelism=2", "attention=flash", "weight_dtype=bfloat16"),
            *("remat_policy=custom", "decoder_layer_input=offload", "mlpwo=offload", "megablox=True"),
            *("sparse_matmul=True", *TILES_OF_1024, FUSED_BACKWARD),
        ),
        OF_TPU7X,
        "tpu-recipes, training/ironwood/gpt-oss-120b/8k-bf16-tpu7x-4x4x4",
        "flags of Gemma 4's recipes; parameters in bfloat16, because MaxText 0.2.2 cannot differentiate sinks in "
        f"float32; megablox' kernel for tokamax's; experts split as its default has them; {_OF_JAX}",
    ),
    "qwen2.5-7b-v6e-8": _like(_V6E, "v6e-8", "qwen2.5-7b", 16, 4096, *_OF_V6E),
    "gemma3-4b-v6e-8": _like(_V6E, "v6e-8", "gemma3-4b", 16, 8192, *_OF_V6E, own=("num_vocab_tiling=8",)),
    "qwen3-14b-v6e-32": _like(_V6E, "v6e-32", "qwen3-14b", 64, 8192, *_OF_V6E),
    "gemma4-31b-v6e-256": _like(_V6E, "v6e-256", "gemma4-31b", 512, 8192, *_OF_V6E),
    "olmo3-7b-v5p-16": _like(_V5P, "v5p-16", "olmo3-7b", 32, 8192, *_OF_V5P),
    "gemma3-27b-v5p-64": _like(_V5P, "v5p-64", "gemma3-27b", 64, 8192, *_OF_V5P),
    "mistral-7b-v5e-64": _like(
        *("maxtext_v5e_model_configs.py: llama3_1_8b_8192_v5e_256", "v5e-64", "mistral-7b", 128, 4096),
        *(*DENSE_VMEM, *SUM_LAYOUT, *DATA_PARALLEL, *FUSED_GATHERS),
    ),
    "qwen3-32b-tpu7x-64": _like(
        *("tpu-recipes, training/ironwood: Gemma 4", "tpu7x-64", "qwen3-32b", 128, 8192, *OF_TPU7X)
    ),
    "llama4-scout-v5p-128": _like(
        *(_V5P, "v5p-128", "llama4-scout", 128, 4096, *_OF_V5P), own=("model_name=llama4-17b-16e", *MIXTURE)
    ),
    "qwen3-next-80b-v5p-128": _like(
        *(_V5P, "v5p-128", "qwen3-next-80b", 128, 4096, *_OF_V5P), own=("model_name=qwen3-next-80b-a3b", *MIXTURE)
    ),
    "deepseek-v3-v5p-512": _like(
        *(_V5P, "v5p-512", "deepseek-v3", 512, 4096, *_OF_V5P), own=("model_name=deepseek3-671b", *MIXTURE)
    ),
}
