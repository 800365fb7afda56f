"""Small models of every family, in Hugging Face's files, with weights that a seed and a name make.

Weights come from numpy alone, so a checkpoint can be made again anywhere: the reference numbers of `transformers`
are committed (`tests/unit/pttrainer/models/references`), the weights they were computed with are not. Sizes are odd
on purpose, and the weights are large, so that a wrong position or mask shows in the logits.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from pttrainer.models import Model, from_hf
from pttrainer.models.weights.hf_names import in_files
from pttrainer.models.weights.weight import stored_shapes, weights_of

WINDOW = 11
KEEP = 9
"""Tokens that a query of sparse attention sees."""
ORIGINAL = 24
"""Context before any scaling: tests go well beyond both."""

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
LONGROPE = {
    "type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.5, 1.9, 2.5],
    "long_factor": [1.0, 1.4, 3.0, 7.0, 12.0, 20.0],
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}


def _config(model_type: str, **values: Any) -> dict[str, Any]:
    """hidden_size is no multiple of the heads where the family allows it, nor the vocabulary of anything."""
    sizes = {
        "vocab_size": 107, "hidden_size": 42, "num_hidden_layers": 3, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 10, "intermediate_size": 53, "max_position_embeddings": 4 * ORIGINAL,
        "rms_norm_eps": 1e-5,
    }  # fmt: skip
    return {"model_type": model_type, **sizes, **values}


def _kinds(letters: str) -> list[str]:
    return ["sliding_attention" if letter == "s" else "full_attention" for letter in letters]


CASES: dict[str, dict[str, Any]] = {
    "llama-3.0": _config("llama", rope_theta=500_000.0),
    "llama-3.1": _config("llama", rope_theta=500_000.0, rope_scaling=LLAMA3),
    "llama-3.2-tied": _config("llama", rope_parameters=LLAMA3 | {"rope_theta": 5e5}, tie_word_embeddings=True),
    "llama-biases-mqa": _config("llama", attention_bias=True, mlp_bias=True, num_key_value_heads=1, hidden_act="gelu"),
    "llama-linear": _config("llama", rope_scaling={"type": "linear", "factor": 2.5}, num_key_value_heads=6),
    "llama-4": _config(
        "llama4_text", num_hidden_layers=5, no_rope_layer_interval=3, attention_chunk_size=WINDOW, floor_scale=7,
        attn_scale=0.3, num_local_experts=5, num_experts_per_tok=2, interleave_moe_layer_step=2,
        intermediate_size_mlp=37, rope_theta=5e5,
        rope_scaling=LLAMA3 | {"low_freq_factor": 1.0, "high_freq_factor": 1.0},
    ),
    "mistral": _config("mistral", sliding_window=WINDOW, hidden_size=44),
    "mistral-full": _config("mistral", sliding_window=None, rope_theta=1e6, hidden_size=40, head_dim=14),
    "mixtral": _config("mixtral", num_local_experts=7, num_experts_per_tok=2, sliding_window=WINDOW, hidden_size=44),
    "qwen-2.5": _config("qwen2", rope_theta=1e6, tie_word_embeddings=True, use_sliding_window=False, hidden_size=60),
    "qwen-2.5-yarn": _config("qwen2", rope_theta=1e6, rope_scaling=YARN, hidden_size=60),
    "qwen-2.5-window": _config(
        "qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1, hidden_size=60
    ),
    "qwen-3": _config("qwen3", rope_theta=1e6, hidden_size=44, head_dim=16),
    "qwen-3-biases-yarn": _config("qwen3", rope_parameters=YARN | {"rope_theta": 5e6}, attention_bias=True),
    "qwen-3-moe": _config(
        "qwen3_moe", num_experts=7, num_experts_per_tok=3, moe_intermediate_size=19, norm_topk_prob=True, rope_theta=1e6
    ),
    "qwen-3-moe-unnormalised": _config(
        "qwen3_moe", num_experts=5, num_experts_per_tok=2, moe_intermediate_size=23, norm_topk_prob=False, head_dim=8,
        tie_word_embeddings=True,
    ),
    "qwen-3-moe-mixed": _config(
        "qwen3_moe", num_hidden_layers=7, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=17,
        norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=[1],
    ),
    "glm-4.5": _config(
        "glm4_moe", first_k_dense_replace=1, head_dim=12, n_routed_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=19, n_shared_experts=2, routed_scaling_factor=1.5, use_qk_norm=True, attention_bias=True,
        rope_theta=1e6, n_group=4, topk_group=2,
    ),
    "deepseek-v3": _config(
        "deepseek_v3", num_hidden_layers=4, num_key_value_heads=6, kv_lora_rank=18, q_lora_rank=22, qk_rope_head_dim=6,
        head_dim=6, qk_nope_head_dim=11, v_head_dim=9, n_routed_experts=8, num_experts_per_tok=3, n_group=4,
        topk_group=2, moe_intermediate_size=19, first_k_dense_replace=2, num_nextn_predict_layers=0,
        rope_scaling=YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
    ),
    "kimi-k2": _config(
        "deepseek_v3", num_hidden_layers=2, num_key_value_heads=6, kv_lora_rank=18, q_lora_rank=None, head_dim=8,
        qk_rope_head_dim=8, qk_nope_head_dim=10, v_head_dim=12, n_routed_experts=6, num_experts_per_tok=2, n_group=1,
        topk_group=1, moe_intermediate_size=19, first_k_dense_replace=1, n_shared_experts=2, rope_interleave=False,
        num_nextn_predict_layers=0,
    ),
    "deepseek-v3.2": _config(
        "deepseek_v32", num_hidden_layers=3, num_key_value_heads=6, kv_lora_rank=18, q_lora_rank=22, qk_rope_head_dim=6,
        head_dim=6, qk_nope_head_dim=11, v_head_dim=9, n_routed_experts=8, num_experts_per_tok=3, n_group=4,
        topk_group=2, moe_intermediate_size=19, first_k_dense_replace=1, num_nextn_predict_layers=0, index_n_heads=9,
        index_head_dim=14, index_topk=KEEP, rope_scaling=YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
    ),
    "glm-5": _config(
        "glm_moe_dsa", num_hidden_layers=3, num_key_value_heads=6, kv_lora_rank=20, q_lora_rank=18, qk_rope_head_dim=8,
        head_dim=8, qk_nope_head_dim=9, v_head_dim=13, n_routed_experts=6, num_experts_per_tok=2, n_group=1,
        topk_group=1, moe_intermediate_size=19, mlp_layer_types=["sparse", "dense", "sparse"], n_shared_experts=2,
        num_nextn_predict_layers=0, index_n_heads=11, index_head_dim=10, index_topk=KEEP, rope_theta=1e6,
    ),
    "deepseek-v3-dense": _config(
        "deepseek_v3", num_hidden_layers=2, num_key_value_heads=6, kv_lora_rank=18, q_lora_rank=22, qk_rope_head_dim=6,
        head_dim=6, qk_nope_head_dim=11, v_head_dim=9, first_k_dense_replace=3, num_nextn_predict_layers=0,
        attention_bias=True,
    ),
    "glm-5.1": _config(
        "glm_moe_dsa", num_hidden_layers=4, num_key_value_heads=6, kv_lora_rank=20, q_lora_rank=18, qk_rope_head_dim=8,
        head_dim=8, qk_nope_head_dim=9, v_head_dim=13, n_routed_experts=6, num_experts_per_tok=2, n_group=1,
        topk_group=1, moe_intermediate_size=19, first_k_dense_replace=1, n_shared_experts=1, index_topk_pattern="FSSF",
        num_nextn_predict_layers=0, index_n_heads=11, index_head_dim=10, index_topk=KEEP, rope_theta=1e6,
    ),
    "olmo-3": _config(
        "olmo3", num_hidden_layers=4, sliding_window=WINDOW, rope_scaling=YARN, hidden_size=60, attention_bias=True
    ),
    "olmo-2": _config("olmo2", num_hidden_layers=2, rope_theta=5e5, hidden_size=60),
    "smollm-3": _config("smollm3", num_hidden_layers=4, rope_theta=2e6, hidden_size=60, pad_token_id=0),
    "phi-4": _config(
        "phi3", num_hidden_layers=2, rope_theta=250_000.0, hidden_size=72, head_dim=12, partial_rotary_factor=0.5,
        pad_token_id=0,
    ),
    "phi-4-mini": _config(
        "phi3", num_hidden_layers=2, hidden_size=96, partial_rotary_factor=0.75, head_dim=16, pad_token_id=0,
        tie_word_embeddings=True, sliding_window=400, original_max_position_embeddings=5 * ORIGINAL,
        max_position_embeddings=20 * ORIGINAL, rope_scaling=LONGROPE,
    ),
    "phi-3-long": _config(
        "phi3", num_hidden_layers=2, hidden_size=60, pad_token_id=0, original_max_position_embeddings=7,
        rope_parameters={
            "rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0], "long_factor": [1, 1.5, 2.5, 6.0, 9.0],
            "rope_theta": 2e4, "factor": 4.0,
        },
    ),
    "ministral-3": _config(
        "ministral3", num_hidden_layers=2, rope_parameters=YARN | {
            "rope_theta": 1e6, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
        },
    ),
    "qwen-3-next": _config(
        "qwen3_next", num_hidden_layers=5, head_dim=16, full_attention_interval=3, rope_theta=1e6, num_experts=6,
        num_experts_per_tok=2, moe_intermediate_size=19, shared_expert_intermediate_size=23, **DELTA,
    ),
    "qwen-3.5": _config(
        "qwen3_5_text", num_hidden_layers=4, head_dim=16, tie_word_embeddings=True, **DELTA,
        layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"],
        rope_parameters={
            "rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    ),
    "qwen-3.5-moe": _config(
        "qwen3_5_moe_text", num_hidden_layers=2, head_dim=16, full_attention_interval=2, rope_theta=1e6, num_experts=5,
        num_experts_per_tok=2, moe_intermediate_size=19, shared_expert_intermediate_size=23, **DELTA,
    ),
    "gemma-2": _config(
        "gemma2", num_hidden_layers=4, sliding_window=WINDOW, query_pre_attn_scalar=24, attn_logit_softcapping=7.0,
        final_logit_softcapping=5.0,
    ),
    "gemma-3": _config(
        "gemma3_text", num_hidden_layers=7, sliding_window=WINDOW, sliding_window_pattern=3, query_pre_attn_scalar=9,
        rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling={"rope_type": "linear", "factor": 8.0},
    ),
    "gemma-3-untied": _config(
        "gemma3_text", num_hidden_layers=4, sliding_window=WINDOW, tie_word_embeddings=False,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 2e4},
        },
    ),
    "gemma-4": _config(
        "gemma4_text", num_hidden_layers=7, sliding_window=WINDOW, global_head_dim=16, num_global_key_value_heads=1,
        attention_k_eq_v=True, hidden_size_per_layer_input=0, final_logit_softcapping=9.0,
        layer_types=_kinds("ssfssff"),
    ),
    "gemma-4-small": _config(
        "gemma4_text", num_hidden_layers=8, sliding_window=WINDOW, global_head_dim=14, num_kv_shared_layers=4,
        num_key_value_heads=1, use_double_wide_mlp=True, hidden_size_per_layer_input=21, vocab_size_per_layer_input=110,
        layer_types=_kinds("sfsfsfsf"),
    ),
    "gemma-4-moe": _config(
        "gemma4_text", num_hidden_layers=4, sliding_window=WINDOW, global_head_dim=12, hidden_size_per_layer_input=0,
        enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=19, tie_word_embeddings=False,
        layer_types=_kinds("sfsf"), attention_bias=True,
        rope_parameters={
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 2e4},
        },
    ),
    "gpt-oss": _config(
        "gpt_oss", num_hidden_layers=4, sliding_window=WINDOW, num_local_experts=6, num_experts_per_tok=3,
        rope_theta=150_000.0, swiglu_limit=2.0,
        rope_scaling=YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    ),
    "gpt-oss-defaults": _config(
        "gpt_oss", num_hidden_layers=3, sliding_window=WINDOW, num_local_experts=5, num_experts_per_tok=2,
        attention_bias=False, layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
}  # fmt: skip


def tensor(name: str, shape: tuple[int, ...], centred_at_zero: bool = False) -> np.ndarray:
    """A weight, from its name: matrices of deviation 0.2, norms around what leaves a vector as it is."""
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    if name.endswith(("norm.weight", "layernorm_1.weight", "layernorm_2.weight", "scale", "layer_scalar")):
        return np.asarray((0 if centred_at_zero else 1) + 0.3 * noise, np.float32)
    if name.endswith(("put_min", "put_max")):  # bounds that some activations reach
        return np.asarray((-1 if name.endswith("min") else 1) * (1 + np.abs(noise)), np.float32)
    return np.asarray(noise * (1.0 if "sinks" in name else 0.2), np.float32)


def tensors(raw: dict[str, Any]) -> dict[str, np.ndarray]:
    """All weights of a model, by Hugging Face's names."""
    config = from_hf(raw)
    shapes = stored_shapes(config, Model(config).abstract())
    return {name: tensor(name, shape, config.zero_centred_norms) for name, shape in shapes.items()}


def write_with_images(
    directory: Path, raw: dict[str, Any], processor: dict[str, Any], centred_at_zero: bool = False
) -> Path:
    """A model with its vision tower: `config.json`, the processor's files by name, and `model.safetensors`."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in {"config.json": raw, **processor}.items():
        (directory / name).write_text(json.dumps(content))
    config = from_hf(raw, images=True)
    weights = weights_of(in_files(config), Model(config).abstract())
    shapes = {weight.name(place): weight.stored_shape for weight in weights for place in weight.places}
    made = {name: tensor(name, shape, centred_at_zero) for name, shape in shapes.items()}
    save_file(made, directory / "model.safetensors")
    return directory


def write_checkpoint(directory: Path, raw: dict[str, Any]) -> Path:
    """`config.json` and `model.safetensors`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw))
    save_file(tensors(raw), directory / "model.safetensors", {"format": "pt"})
    return directory


def tokens(raw: dict[str, Any], rows: int, length: int, seed: int = 0) -> np.ndarray:
    """Token ids [rows, length]."""
    return np.random.default_rng(seed).integers(3, raw["vocab_size"], (rows, length)).astype(np.int32)


LENGTH = 4 * ORIGINAL
SHORT = (13, 37, 29)
NEW_TOKENS = 64


def examples(raw: dict[str, Any]) -> list[np.ndarray]:
    """A row of LENGTH tokens, and one of each SHORT length."""
    return [tokens(raw, 1, length, seed)[0] for seed, length in enumerate((LENGTH, *SHORT))]
