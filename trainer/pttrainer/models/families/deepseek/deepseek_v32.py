"""DeepSeek V3.2 and GLM 5: latent attention in which an indexer chooses what a query sees (arXiv 2512.02556).

Experts are chosen as in DeepSeek V3. GLM's indexer has its pairs side by side, and in its later releases layers share
what one of them chose (arXiv 2603.12201).
"""

from collections.abc import Sequence
from typing import Any

from pttrainer.models.config import Indexer, Latent, ModelConfig
from pttrainer.models.families.config_json import common_fields, rope_fields
from pttrainer.models.families.config_json.fields import Fields
from pttrainer.models.families.deepseek.deepseek_v3 import read_biases, read_slope, write_shared
from pttrainer.models.families.deepseek.glm4_moe import mixed, read_experts

FAMILY, GLM = FAMILIES = "deepseek_v32", "glm_moe_dsa"
ARCHITECTURES = {FAMILY: "DeepseekV32ForCausalLM", GLM: "GlmMoeDsaForCausalLM"}
DENSE, SPARSE = "dense", "sparse"
FULL, SHARED = "full", "shared"


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    family = fields.choice("model_type", FAMILIES, FAMILY)
    is_glm = family == GLM
    common = common_fields.read(
        fields, vocab_size=154_880 if is_glm else 129_280, heads=64 if is_glm else 128, bos=(0,), eos=(1,),
        max_positions=202_752 if is_glm else 163_840, norm_eps=1e-5 if is_glm else 1e-6,
    )  # fmt: skip
    latent = _read_latent(fields, is_glm=is_glm)
    head_dim = fields.integer("qk_nope_head_dim", 192 if is_glm else 128) + latent.rotary
    _refuse_variants(fields, common["layers"])
    fields.choice("indexer_rope_interleave", (is_glm,), is_glm)
    slope, groups = read_slope(fields), (1, 1) if is_glm else (8, 4)
    return ModelConfig(
        family=family,
        **{**common, "head_dim": head_dim, "kv_heads": common["heads"]},
        rope=rope_fields.read(fields, 10_000.0, common["max_positions"]),
        activation=common_fields.activation(fields, "hidden_act", "silu"),
        query_scale=head_dim**-0.5 * slope * slope,
        latent=latent,
        **read_biases(fields),
        **mixed(
            _read_dense(fields, common["layers"]),
            read_experts(
                fields, per_token=8, count=256, d_ff=2048, shared=1, groups=groups[0], groups_used=groups[1], scale=2.5
            ),
        ),
        following_layers=_read_following(fields, common["layers"], (FULL, SHARED) if is_glm else (FULL,)),
        prediction_layers=fields.count("num_nextn_predict_layers", 1),
    )


def _read_latent(fields: Fields, *, is_glm: bool) -> Latent:
    return Latent(
        rank=fields.integer("kv_lora_rank", 512),
        query_rank=fields.integer("q_lora_rank", 2048 if is_glm else 1536),
        rotary=fields.integer("qk_rope_head_dim", 64),
        value_dim=fields.integer("v_head_dim", 256 if is_glm else 128),
        indexer=Indexer(
            heads=fields.integer("index_n_heads", 32 if is_glm else 64),
            head_dim=fields.integer("index_head_dim", 128),
            keep=fields.integer("index_topk", 2048),
            interleaved=is_glm,
        ),
    )


def _read_dense(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Return which layers have an MLP: as listed, or the first ones."""
    first = min(fields.count("first_k_dense_replace", 3), layers)
    kinds = fields.value("mlp_layer_types", [DENSE] * first + [SPARSE] * (layers - first))
    if not _are_kinds(kinds, (DENSE, SPARSE), layers):
        fields.refuse("mlp_layer_types", f"a list of {layers} of {DENSE}, {SPARSE}")
    return tuple(kind == DENSE for kind in kinds)


def _refuse_variants(fields: Fields, layers: int) -> None:
    """Refuse what no released model has."""
    fields.choice("mlp_bias", (False,), False)
    fields.choice("scoring_func", ("sigmoid",), "sigmoid")
    fields.choice("topk_method", ("noaux_tc",), "noaux_tc")
    fields.choice("moe_layer_freq", (1,), 1)
    fields.choice("rope_interleave", (True,), True)
    _one_kind(fields, "layer_types", "indexed_attention", layers)
    for key in ("index_share_for_mtp_iteration", "qk_head_dim", "aux_loss_alpha", "seq_aux", "ep_size"):
        fields.value(key, None)


def _read_following(fields: Fields, layers: int, accepted: Sequence[str]) -> tuple[bool, ...]:
    """Return which layers share what one before them chose: as listed, as a pattern of letters, or every few layers."""
    every, first = max(fields.count("index_topk_freq", 1), 1), fields.count("index_skip_topk_offset", 2)
    regular = [SHARED if max(layer - first + 1, 0) % every else FULL for layer in range(layers)]
    key = "indexer_types" if "indexer_types" in fields else "index_topk_pattern"
    pattern = fields.value("index_topk_pattern", regular)
    kinds = fields.value("indexer_types", pattern)
    if isinstance(kinds, str):
        kinds = [{"F": FULL, "S": SHARED}.get(letter) for letter in kinds]
    if not _are_kinds(kinds, accepted, layers) or kinds[0] != FULL:
        fields.refuse(key, f"{layers} of {', '.join(accepted)}, the first of them {FULL}")
    return tuple(kind == SHARED for kind in kinds) if SHARED in kinds else ()


def _are_kinds(kinds: Any, accepted: Sequence[str], layers: int) -> bool:
    """Return True if these are a list of accepted kinds, one for each layer."""
    return isinstance(kinds, list) and len(kinds) == layers and all(kind in accepted for kind in kinds)


def _one_kind(fields: Fields, key: str, kind: str, layers: int) -> None:
    """Refuse a list of layers' kinds that has another one."""
    kinds: Sequence[str] = fields.value(key, [kind] * layers)
    if list(kinds) != [kind] * layers:
        fields.refuse(key, f"{kind} for each of the {layers} layers")


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    assert config.latent is not None
    assert config.latent.indexer is not None
    indexer = config.latent.indexer
    return {
        **write_shared(config, ARCHITECTURES[config.family], config.family),
        "index_n_heads": indexer.heads,
        "index_head_dim": indexer.head_dim,
        "index_topk": indexer.keep,
        "mlp_layer_types": [DENSE if config.is_dense(layer) else SPARSE for layer in range(config.layers)],
        **({"indexer_types": _indexer_types(config)} if config.family == GLM else {}),
    }


def _indexer_types(config: ModelConfig) -> list[str]:
    return [SHARED if config.follows(layer) else FULL for layer in range(config.layers)]
