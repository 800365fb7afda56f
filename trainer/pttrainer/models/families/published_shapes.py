"""The published shapes of open models, from their `config.json`, for preflight and benchmarks.

No weights and no download: `random://llama3.1-70b` has the shape only. They use the same readers as a downloaded file
(`families`), so windows, norms and rotary scalings are the real model's. Gemma 3 and Llama 4 are their text parts. Left
out: end tokens, because random models use bytes.
"""

from functools import cache
from typing import Any

from pttrainer.models.config import ModelConfig
from pttrainer.models.families import from_hf
from pttrainer.models.families.config_json.fields import Raw


def _sizes(d_model: int, d_ff: int, layers: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
    return {
        "hidden_size": d_model,
        "intermediate_size": d_ff,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
    }


def _llama3(sizes: dict[str, Any], factor: float, *, tied: bool) -> Raw:
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    return {
        "model_type": "llama",
        **sizes,
        "vocab_size": 128_256,
        "rope_theta": 500_000.0,
        "rope_scaling": scaling,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
    }


def _qwen2(sizes: dict[str, Any], *, tied: bool, vocab: int = 152_064) -> Raw:
    return {
        "model_type": "qwen2",
        **sizes,
        "vocab_size": vocab,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": tied,
    }


def _gpt_oss(*, layers: int, experts: int) -> Raw:
    return {"model_type": "gpt_oss", **_sizes(2880, 2880, layers, 64, 8, 64), "num_local_experts": experts}


def _qwen3(sizes: dict[str, Any], *, tied: bool, **more: Any) -> Raw:
    return {
        "model_type": "qwen3",
        **sizes,
        "vocab_size": 151_936,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": tied,
        **more,
    }


def _gemma2(sizes: dict[str, Any], query_scalar: int) -> Raw:
    return {"model_type": "gemma2", **sizes, "vocab_size": 256_000, "query_pre_attn_scalar": query_scalar}


def _gemma3(sizes: dict[str, Any], query_scalar: int) -> Raw:
    return {
        "model_type": "gemma3_text",
        **sizes,
        "vocab_size": 262_208,
        "query_pre_attn_scalar": query_scalar,
        "sliding_window": 1024,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }


def _gemma4(sizes: dict[str, Any], *, window: int, every: int = 6, **more: Any) -> Raw:
    kinds = ["sliding_attention" if (n + 1) % every else "full_attention" for n in range(sizes["num_hidden_layers"])]
    return {
        "model_type": "gemma4_text",
        **sizes,
        "sliding_window": window,
        "layer_types": kinds,
        "final_logit_softcapping": 30.0,
        **more,
    }


def _olmo3(sizes: dict[str, Any]) -> Raw:
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
    return {
        "model_type": "olmo3",
        **sizes,
        "vocab_size": 100_278,
        "rms_norm_eps": 1e-6,
        "rope_scaling": yarn,
        "max_position_embeddings": 65_536,
    }


def _ministral3(sizes: dict[str, Any], *, tied: bool) -> Raw:
    return {"model_type": "ministral3", **sizes, "tie_word_embeddings": tied}


def _glm4_moe(sizes: dict[str, Any], dense: int, **more: Any) -> Raw:
    return {
        "model_type": "glm4_moe",
        **sizes,
        "attention_bias": True,
        "rope_theta": 1_000_000.0,
        "first_k_dense_replace": dense,
        **more,
    }


_GEMMA4_LARGE = {"window": 1024, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0}
_QWEN3_EXPERTS = {"model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
_MISTRAL = {
    "model_type": "mistral", **_sizes(4096, 14_336, 32, 32, 8, 128), "vocab_size": 32_768, "rope_theta": 1_000_000.0,
    "max_position_embeddings": 32_768, "sliding_window": None, "tie_word_embeddings": False,
}  # fmt: skip
_MIXTRAL = _MISTRAL | {"model_type": "mixtral", "rms_norm_eps": 1e-5}
_LLAMA4 = {
    "model_type": "llama4_text", **_sizes(5120, 8192, 48, 40, 8, 128), "max_position_embeddings": 10_485_760,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip
_MISTRAL_SMALL = {
    **_MISTRAL, **_sizes(5120, 32_768, 40, 32, 8, 128), "vocab_size": 131_072, "rope_theta": 1e9,
    "max_position_embeddings": 131_072,
}  # fmt: skip
_PHI4 = {
    "model_type": "phi3", **_sizes(5120, 17_920, 40, 40, 10, 128), "vocab_size": 100_352, "rope_theta": 250_000.0,
    "max_position_embeddings": 16_384,
}  # fmt: skip

_DEEPSEEK_YARN = {"type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}

RAW: dict[str, Raw] = {
    "llama3.1-8b": _llama3(_sizes(4096, 14_336, 32, 32, 8, 128), 8.0, tied=False),
    "llama3.1-70b": _llama3(_sizes(8192, 28_672, 80, 64, 8, 128), 8.0, tied=False),
    "llama3.1-405b": _llama3(_sizes(16_384, 53_248, 126, 128, 8, 128), 8.0, tied=False),
    "llama3.2-1b": _llama3(_sizes(2048, 8192, 16, 32, 8, 64), 32.0, tied=True),
    "llama3.2-3b": _llama3(_sizes(3072, 8192, 28, 24, 8, 128), 32.0, tied=True),
    "qwen2.5-0.5b": _qwen2(_sizes(896, 4864, 24, 14, 2, 64), tied=True, vocab=151_936),
    "qwen2.5-1.5b": _qwen2(_sizes(1536, 8960, 28, 12, 2, 128), tied=True, vocab=151_936),
    "qwen2.5-7b": _qwen2(_sizes(3584, 18_944, 28, 28, 4, 128), tied=False),
    "qwen2.5-32b": _qwen2(_sizes(5120, 27_648, 64, 40, 8, 128), tied=False),
    "qwen3-0.6b": _qwen3(_sizes(1024, 3072, 28, 16, 8, 128), tied=True),
    "qwen3-1.7b": _qwen3(_sizes(2048, 6144, 28, 16, 8, 128), tied=True),
    "qwen3-4b": _qwen3(_sizes(2560, 9728, 36, 32, 8, 128), tied=True),
    "qwen3-8b": _qwen3(_sizes(4096, 12_288, 36, 32, 8, 128), tied=False),
    "qwen3-14b": _qwen3(_sizes(5120, 17_408, 40, 40, 8, 128), tied=False),
    "qwen3-32b": _qwen3(_sizes(5120, 25_600, 64, 64, 8, 128), tied=False),
    "qwen3-30b-a3b": _qwen3(_sizes(2048, 6144, 48, 32, 4, 128), tied=False, norm_topk_prob=True, **_QWEN3_EXPERTS),
    "qwen3-235b-a22b": _qwen3(
        _sizes(4096, 12_288, 94, 64, 4, 128),
        tied=False,
        norm_topk_prob=True,
        **_QWEN3_EXPERTS | {"moe_intermediate_size": 1536},
    ),
    "gemma2-2b": _gemma2(_sizes(2304, 9216, 26, 8, 4, 256), 256),
    "gemma2-9b": _gemma2(_sizes(3584, 14_336, 42, 16, 8, 256), 256),
    "gemma2-27b": _gemma2(_sizes(4608, 36_864, 46, 32, 16, 128), 144),
    "gemma3-4b": _gemma3(_sizes(2560, 10_240, 34, 8, 4, 256), 256),
    "gemma3-12b": _gemma3(_sizes(3840, 15_360, 48, 16, 8, 256), 256),
    "gemma3-27b": _gemma3(_sizes(5376, 21_504, 62, 32, 16, 128), 168),
    "gemma4-e2b": _gemma4(
        _sizes(1536, 6144, 35, 8, 1, 256), window=512, every=5, num_kv_shared_layers=20, use_double_wide_mlp=True
    ),
    "gemma4-e4b": _gemma4(_sizes(2560, 10_240, 42, 8, 2, 256), window=512, num_kv_shared_layers=18),
    "gemma4-31b": _gemma4(_sizes(5376, 21_504, 60, 32, 16, 256), num_global_key_value_heads=4, **_GEMMA4_LARGE),
    "gemma4-26b-a4b": _gemma4(
        _sizes(2816, 2112, 30, 16, 8, 256),
        num_global_key_value_heads=2,
        enable_moe_block=True,
        num_experts=128,
        top_k_experts=8,
        moe_intermediate_size=704,
        **_GEMMA4_LARGE,
    ),
    "mistral-7b": _MISTRAL,
    "mixtral-8x7b": _MIXTRAL | {"vocab_size": 32_000},
    "mixtral-8x22b": _MIXTRAL | _sizes(6144, 16_384, 56, 48, 8, 128) | {"max_position_embeddings": 65_536},
    "deepseek-v3": {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "intermediate_size": 18_432,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "max_position_embeddings": 163_840,
        "rope_scaling": {**_DEEPSEEK_YARN, "beta_slow": 1, "factor": 40},
    },
    "deepseek-v3.2": {
        "model_type": "deepseek_v32",
        "hidden_size": 7168,
        "intermediate_size": 18_432,
        "num_hidden_layers": 61,
        "rope_scaling": {**_DEEPSEEK_YARN, "beta_slow": 1, "factor": 40},
    },
    "glm-5": {
        "model_type": "glm_moe_dsa",
        "hidden_size": 6144,
        "intermediate_size": 12_288,
        "num_hidden_layers": 78,
        "rope_theta": 1_000_000.0,
    },
    "kimi-k2": {
        "model_type": "kimi_k2",
        "hidden_size": 7168,
        "intermediate_size": 18_432,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "max_position_embeddings": 131_072,
        "vocab_size": 163_840,
        "n_routed_experts": 384,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "rope_theta": 50_000.0,
        "routed_scaling_factor": 2.827,
        "rope_scaling": {**_DEEPSEEK_YARN, "beta_fast": 1, "beta_slow": 1, "factor": 32},
    },
    "llama4-scout": _LLAMA4,
    "llama4-maverick": {
        **_LLAMA4,
        "max_position_embeddings": 1_048_576,
        "rope_scaling": None,
        "num_local_experts": 128,
        "interleave_moe_layer_step": 2,
    },
    "mistral-small-24b": _MISTRAL_SMALL,
    "ministral3-3b": _ministral3(_sizes(3072, 9216, 26, 32, 8, 128), tied=True),
    "ministral3-8b": _ministral3(_sizes(4096, 14_336, 34, 32, 8, 128), tied=False),
    "ministral3-14b": _ministral3(_sizes(5120, 16_384, 40, 32, 8, 128), tied=False),
    "olmo3-7b": _olmo3(_sizes(4096, 11_008, 32, 32, 32, 128)),
    "olmo3-32b": _olmo3(_sizes(5120, 27_648, 64, 40, 8, 128)),
    "smollm3-3b": {"model_type": "smollm3", **_sizes(2048, 11_008, 36, 16, 4, 128), "rope_theta": 5_000_000.0},
    "phi4-14b": _PHI4,
    "glm4.5-air": _glm4_moe(_sizes(4096, 10_944, 46, 96, 8, 128), 1),
    "glm4.5": _glm4_moe(
        _sizes(5120, 12_288, 92, 96, 8, 128),
        3,
        n_routed_experts=160,
        moe_intermediate_size=1536,
        routed_scaling_factor=2.5,
        use_qk_norm=True,
    ),
    "qwen3-next-80b": {
        "model_type": "qwen3_next",
        **_sizes(2048, 5120, 48, 16, 2, 256),
        "rope_theta": 10_000_000.0,
        "max_position_embeddings": 262_144,
    },
    "gpt-oss-20b": _gpt_oss(layers=24, experts=32),
    "gpt-oss-120b": _gpt_oss(layers=36, experts=128),
}
"""By the name after `random://`."""


@cache
def published(name: str) -> ModelConfig:
    """Return the config of a published shape."""
    return from_hf(RAW[name])
