"""Configurations that nobody wrote: models made, initialised and saved by `transformers` itself, read by us.

The seeds are fixed so that a failure can be repeated; `PARITY_SEEDS=100:140 make parity` tries others.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.builders.peers import transformers_reference as reference
from tests.builders.peers.inference import export, forward, greedy, left_padded, load_model, plain

TOLERANCE = 1e-4
FIRST, LAST = (int(x) for x in os.environ.get("PARITY_SEEDS", "0:3").split(":"))
FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "gpt_oss", "olmo2", "olmo3", "smollm3",
    "phi3", "ministral3", "glm4_moe", "gemma4_text", "mixtral",
)  # fmt: skip


def some(family: str, rng: np.random.Generator) -> dict[str, Any]:
    """A configuration within what the family's class accepts."""
    kv_heads, groups = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    heads = kv_heads * groups
    must_divide = family in ("llama", "gemma2", "gemma3_text", "olmo2", "olmo3", "smollm3", "phi3")
    values: dict[str, Any] = {
        "vocab_size": int(rng.integers(50, 200)),
        "hidden_size": heads * int(rng.integers(5, 14)) if must_divide else int(rng.integers(20, 70)),
        "num_hidden_layers": int(rng.integers(1, 8)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 2 * int(rng.integers(3, 12)),
        "intermediate_size": int(rng.integers(20, 90)),
        "max_position_embeddings": 128,
        "rms_norm_eps": float(rng.choice([1e-5, 1e-6])),
        "tie_word_embeddings": bool(rng.integers(2)),
        "initializer_range": 0.2,
        "bos_token_id": 0, "eos_token_id": [1, 2], "pad_token_id": 0 if family in ("smollm3", "phi3") else None,
        "rope_parameters": rope(rng),
    }  # fmt: skip
    if family not in ("qwen2", "mistral", "ministral3", "mixtral", "phi3"):
        values["attention_bias"] = bool(rng.integers(2))
    if family in ("llama", "smollm3"):
        values |= {"mlp_bias": bool(rng.integers(2))}
    if not family.startswith("gemma") and family != "gpt_oss":
        values |= {"hidden_act": str(rng.choice(["silu", "gelu", "gelu_pytorch_tanh"]))}
    window = int(rng.integers(3, 40))
    if family in ("mistral", "ministral3", "mixtral", "phi3"):
        values |= {"sliding_window": window if rng.integers(2) else None}
    if family in ("qwen2", "qwen3", "qwen3_moe"):
        values |= {"use_sliding_window": bool(rng.integers(2)), "sliding_window": window, "max_window_layers": 2}
    if family in ("gemma2", "gemma3_text"):
        values |= {"sliding_window": window, "query_pre_attn_scalar": int(rng.integers(4, 40))}
    if family == "gemma2":
        values |= {
            "attn_logit_softcapping": [None, 9.0][rng.integers(2)],
            "final_logit_softcapping": [None, 6.0][rng.integers(2)],
        }
    if family == "smollm3":
        values |= {"no_rope_layer_interval": int(rng.integers(1, 4))}
        values |= {"use_sliding_window": bool(rng.integers(2)), "sliding_window": window}
    if family == "phi3":
        share = float(rng.choice([0.5, 0.75, 1.0]))
        values["head_dim"] = 8 * int(rng.integers(1, 4))
        values["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share}
        if rng.integers(2):  # short factors for whole rows, or long ones for all that are looked at
            pairs = int(values["head_dim"] * share) // 2
            values["hidden_size"] = heads * values["head_dim"]  # by which the class counts pairs
            values["original_max_position_embeddings"] = int(rng.choice([7, 125]))
            factors = {name: rng.uniform(1, 9, pairs).tolist() for name in ("short_factor", "long_factor")}
            values["rope_parameters"] |= {"rope_type": "longrope", **factors}
    if family == "ministral3":
        positions = {
            "factor": float(rng.uniform(1.5, 16)),
            "original_max_position_embeddings": int(rng.integers(9, 80)),
        }
        of_queries = {"llama_4_scaling_beta": float(rng.uniform(0.05, 0.5)), "mscale": 1.0, "mscale_all_dim": 1.0}
        values["rope_parameters"] = {"rope_type": "yarn", "rope_theta": 1e6} | positions | of_queries
    if family == "glm4_moe":
        groups, each = int(rng.integers(1, 4)), int(rng.integers(2, 5))
        used = int(rng.integers(1, groups + 1))
        values |= {
            "num_hidden_layers": int(rng.integers(2, 7)), "first_k_dense_replace": int(rng.integers(0, 2)),
            "n_routed_experts": groups * each, "num_experts_per_tok": int(rng.integers(1, used * each + 1)),
            "n_group": groups, "topk_group": used, "n_shared_experts": int(rng.integers(1, 3)),
            "moe_intermediate_size": int(rng.integers(10, 50)), "norm_topk_prob": bool(rng.integers(2)),
            "routed_scaling_factor": float(rng.uniform(0.5, 3)), "use_qk_norm": bool(rng.integers(2)),
            "head_dim": 8 * int(rng.integers(1, 4)), "partial_rotary_factor": float(rng.choice([0.5, 1.0])),
        }  # fmt: skip
    if family in ("olmo3", "gemma3_text"):
        values |= {"sliding_window": window}
        values["rope_parameters"] = {"full_attention": rope(rng), "sliding_attention": rope(rng)}
    if family == "gemma3_text":
        values |= {"sliding_window_pattern": int(rng.integers(1, 4))}
    if family in ("qwen3_moe", "gpt_oss", "mixtral"):
        experts = int(rng.integers(2, 9))
        values |= {"num_experts_per_tok": int(rng.integers(1, experts + 1))}
        values |= {"num_experts" if family == "qwen3_moe" else "num_local_experts": experts}
    if family == "qwen3_moe":
        values |= {"moe_intermediate_size": int(rng.integers(10, 50)), "norm_topk_prob": bool(rng.integers(2))}
    if family == "gemma4_text":
        values |= gemma4(rng, values)
    if family == "gpt_oss":
        values |= {"sliding_window": window, "swiglu_limit": float(rng.uniform(0.5, 4))}
        values |= {
            "layer_types": list(rng.choice(["full_attention", "sliding_attention"], values["num_hidden_layers"]))
        }
    return values


def gemma4(rng: np.random.Generator, values: dict[str, Any]) -> dict[str, Any]:
    """What Gemma 4 has beside the others: heads of global layers, layers that borrow, embeddings per layer, experts."""
    kinds = rng.choice(["full_attention", "sliding_attention"], int(rng.integers(1, 6))).tolist()
    kinds += ["full_attention"] * (kinds[-1] != "full_attention")
    borrowing = len(kinds) if rng.integers(2) else 0
    experts = int(rng.integers(2, 7)) if rng.integers(2) else None
    turning = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": float(rng.choice([0.25, 0.5]))}
    return {
        "layer_types": kinds * (2 if borrowing else 1),
        "num_hidden_layers": len(kinds) * (2 if borrowing else 1),
        "num_kv_shared_layers": borrowing,
        "use_double_wide_mlp": bool(rng.integers(2)),
        "sliding_window": int(rng.integers(3, 40)),
        "global_head_dim": 4 * int(rng.integers(2, 7)),
        "num_global_key_value_heads": int(rng.choice([1, values["num_attention_heads"]])),
        "attention_k_eq_v": bool(rng.integers(2)),
        "hidden_size_per_layer_input": int(rng.choice([0, 19, 24])),
        "vocab_size_per_layer_input": values["vocab_size"] + int(rng.integers(5)),
        "final_logit_softcapping": [None, 6.0][rng.integers(2)],
        "rope_parameters": {"full_attention": turning, "sliding_attention": rope(rng)},
        "enable_moe_block": experts is not None,
        "num_experts": experts,
        "top_k_experts": None if experts is None else int(rng.integers(1, experts + 1)),
        "moe_intermediate_size": None if experts is None else int(rng.integers(10, 50)),
    }


def rope(rng: np.random.Generator) -> dict[str, Any]:
    """Rotary parameters of any type we read."""
    base = {"rope_theta": float(rng.choice([1e4, 1.5e5, 5e5, 1e6, 5e6]))}
    original = {"factor": float(rng.uniform(1.5, 16)), "original_max_position_embeddings": int(rng.integers(16, 80))}
    match rng.integers(4):
        case 0:
            return base | {"rope_type": "default"}
        case 1:
            return base | {"rope_type": "linear", "factor": original["factor"]}
        case 2:
            return base | original | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return (
        base | original | {"rope_type": "yarn", "truncate": bool(rng.integers(2)), "beta_fast": 24.0, "beta_slow": 1.5}
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_a_model_made_by_transformers_is_the_same_model_here(family: str, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([seed, FAMILIES.index(family)])
    config = transformers.AutoConfig.for_model(family, **some(family, rng))
    torch.manual_seed(seed)
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for name, weight in made.named_parameters():  # norms and biases start without effect: give them one
            if weight.ndim == 1 or "bias" in name:
                weight.add_(torch.randn_like(weight) * 0.2)
    made.save_pretrained(tmp_path / "theirs")
    theirs = reference.load_reference(tmp_path / "theirs")
    model, params = load_model(tmp_path / "theirs")
    tokens = rng.integers(0, config.vocab_size, 120).astype(np.int32)
    short = tokens[:51]
    plain_TV, padded_TV = forward(model, params, [plain(tokens, 120), left_padded(short, 120)])
    wanted = reference.logits(theirs, tokens)
    assert wanted.std() > 0.3
    assert np.abs(plain_TV - wanted).max() <= TOLERANCE
    assert np.abs(padded_TV[-51:] - reference.logits_left_padded(theirs, short, 120)).max() <= TOLERANCE
    ours = greedy(model, params, [short], 40)[0]
    np.testing.assert_array_equal(ours, reference.greedy(theirs, short, 40))
    (tmp_path / "ours").mkdir()
    export(model, params, tmp_path / "ours")
    np.testing.assert_array_equal(reference.logits(reference.load_reference(tmp_path / "ours"), tokens), wanted)
