"""Weight names: a path in our tree on the left, Hugging Face's name on the right.

`{i}` is the layer and `{e}` the expert; our weights of all layers of a kind are stacked, and within them those of all
experts. A transposed weight is stored as [out, in] there and [in, out] here.
"""

from collections.abc import Mapping
from dataclasses import replace

from pttrainer.models.config import Gemma4Vision, ModelConfig, QwenVision
from pttrainer.models.config.layer_groups import LAYERS
from pttrainer.models.vision import names as vision_names
from pttrainer.models.weights.weight_locations import Part as Part
from pttrainer.models.weights.weight_locations import Path as Path
from pttrainer.models.weights.weight_locations import Stored as Stored

Names = Mapping[Path, Stored]


def _in_layer(weights: dict[str, str | Stored]) -> dict[Path, Stored]:
    """Return paths written `a.b` and names without the layer's prefix; plain strings are matrices, [out, in]."""
    named: dict[Path, Stored] = {}
    for path, name in weights.items():
        stored = name if isinstance(name, Stored) else Stored(name, transposed=True)
        named["layers", *path.split(".")] = Stored(f"model.layers.{{i}}.{stored.name}", stored.transposed)
    return named


WHOLE: dict[Path, Stored] = {
    ("embedding",): Stored("model.embed_tokens.weight"),
    ("norm", "scale"): Stored("model.norm.weight"),
    ("head",): Stored("lm_head.weight"),
}
ATTENTION = _in_layer({
    "attention.q": "self_attn.q_proj.weight",
    "attention.k": "self_attn.k_proj.weight",
    "attention.v": "self_attn.v_proj.weight",
    "attention.o": "self_attn.o_proj.weight",
})  # fmt: skip
LATENT_ATTENTION = _in_layer({
    "attention.q": "self_attn.q_proj.weight",
    "attention.q_down": "self_attn.q_a_proj.weight",
    "attention.q_norm.scale": Stored("self_attn.q_a_layernorm.weight"),
    "attention.q_up": "self_attn.q_b_proj.weight",
    "attention.kv_down": "self_attn.kv_a_proj_with_mqa.weight",
    "attention.kv_norm.scale": Stored("self_attn.kv_a_layernorm.weight"),
    "attention.kv_up": "self_attn.kv_b_proj.weight",
    "attention.o": "self_attn.o_proj.weight",
})  # fmt: skip
LATENT_BIAS = _in_layer({
    "attention.q_down_bias": Stored("self_attn.q_a_proj.bias"),
    "attention.kv_down_bias": Stored("self_attn.kv_a_proj_with_mqa.bias"),
})  # fmt: skip
INDEXER = _in_layer({
    "attention.indexer.q": "self_attn.indexer.wq_b.weight",
    "attention.indexer.k": "self_attn.indexer.wk.weight",
    "attention.indexer.weights": "self_attn.indexer.weights_proj.weight",
    "attention.indexer.norm_scale": Stored("self_attn.indexer.k_norm.weight"),
    "attention.indexer.norm_bias": Stored("self_attn.indexer.k_norm.bias"),
})  # fmt: skip
DELTA = {
    **_in_layer({
        "attention.conv": Stored("linear_attn.conv1d.weight"),
        "attention.decay": Stored("linear_attn.A_log"),
        "attention.decay_bias": Stored("linear_attn.dt_bias"),
        "attention.norm_scale": Stored("linear_attn.norm.weight"),
        "attention.o": "linear_attn.out_proj.weight",
    }),
}  # fmt: skip
DELTA_BY_HEAD = _in_layer({
    "attention.qkvz": "linear_attn.in_proj_qkvz.weight",
    "attention.ba": "linear_attn.in_proj_ba.weight",
})  # fmt: skip
DELTA_APART = _in_layer({
    "attention.qkv": "linear_attn.in_proj_qkv.weight",
    "attention.z": "linear_attn.in_proj_z.weight",
    "attention.b": "linear_attn.in_proj_b.weight",
    "attention.a": "linear_attn.in_proj_a.weight",
})  # fmt: skip
QKV_BIAS = _in_layer({
    "attention.q_bias": Stored("self_attn.q_proj.bias"),
    "attention.k_bias": Stored("self_attn.k_proj.bias"),
    "attention.v_bias": Stored("self_attn.v_proj.bias"),
})  # fmt: skip
O_BIAS = _in_layer({"attention.o_bias": Stored("self_attn.o_proj.bias")})
QK_NORM = _in_layer({
    "attention.q_norm.scale": Stored("self_attn.q_norm.weight"),
    "attention.k_norm.scale": Stored("self_attn.k_norm.weight"),
})  # fmt: skip
SINKS = _in_layer({"attention.sinks": Stored("self_attn.sinks")})
NORMS = _in_layer({
    "attention_norm.scale": Stored("input_layernorm.weight"),
    "mlp_norm.scale": Stored("post_attention_layernorm.weight"),
})  # fmt: skip
# The same word means another norm where there are four of them.
FOUR_NORMS = _in_layer({
    "attention_norm.scale": Stored("input_layernorm.weight"),
    "attention_post_norm.scale": Stored("post_attention_layernorm.weight"),
    "mlp_norm.scale": Stored("pre_feedforward_layernorm.weight"),
    "mlp_post_norm.scale": Stored("post_feedforward_layernorm.weight"),
})  # fmt: skip
# OLMo: none before attention and MLP.
POST_NORMS = _in_layer({
    "attention_post_norm.scale": Stored("post_attention_layernorm.weight"),
    "mlp_post_norm.scale": Stored("post_feedforward_layernorm.weight"),
})  # fmt: skip
MLP = _in_layer({
    "mlp.gate": "mlp.gate_proj.weight",
    "mlp.up": "mlp.up_proj.weight",
    "mlp.down": "mlp.down_proj.weight",
})  # fmt: skip
MLP_BIAS = _in_layer({
    "mlp.gate_bias": Stored("mlp.gate_proj.bias"),
    "mlp.up_bias": Stored("mlp.up_proj.bias"),
    "mlp.down_bias": Stored("mlp.down_proj.bias"),
})  # fmt: skip
EXPERTS = _in_layer({
    "mlp.router": "mlp.gate.weight",
    "mlp.gate": "mlp.experts.{e}.gate_proj.weight",
    "mlp.up": "mlp.experts.{e}.up_proj.weight",
    "mlp.down": "mlp.experts.{e}.down_proj.weight",
})  # fmt: skip
MIXTRAL_EXPERTS = _in_layer({
    "mlp.router": "block_sparse_moe.gate.weight",
    "mlp.gate": "block_sparse_moe.experts.{e}.w1.weight",
    "mlp.up": "block_sparse_moe.experts.{e}.w3.weight",
    "mlp.down": "block_sparse_moe.experts.{e}.w2.weight",
})  # fmt: skip
# Already stacked, already [in, out]; the columns of gate and up alternate in one tensor.
BIASED_EXPERTS = _in_layer({
    "mlp.router": "mlp.router.weight",
    "mlp.router_bias": Stored("mlp.router.bias"),
    "mlp.gate": Stored("mlp.experts.gate_up_proj"),
    "mlp.gate_bias": Stored("mlp.experts.gate_up_proj_bias"),
    "mlp.down": Stored("mlp.experts.down_proj"),
    "mlp.down_bias": Stored("mlp.experts.down_proj_bias"),
})  # fmt: skip
ROUTER_CORRECTION = _in_layer({"mlp.router_correction": Stored("mlp.gate.e_score_correction_bias")})
SHARED_EXPERT = _in_layer({
    "mlp.shared_gate": "mlp.shared_experts.gate_proj.weight",
    "mlp.shared_up": "mlp.shared_experts.up_proj.weight",
    "mlp.shared_down": "mlp.shared_experts.down_proj.weight",
})  # fmt: skip
GATED_SHARED_EXPERT = _in_layer({
    "mlp.shared_gate": "mlp.shared_expert.gate_proj.weight",
    "mlp.shared_up": "mlp.shared_expert.up_proj.weight",
    "mlp.shared_down": "mlp.shared_expert.down_proj.weight",
    "mlp.shared_scale": "mlp.shared_expert_gate.weight",
})  # fmt: skip


# In place of `mlp`; the experts' gate and up are halves of one tensor, already stacked, already [in, out].
LLAMA4_MLP = _in_layer({
    "mlp.gate": "feed_forward.gate_proj.weight",
    "mlp.up": "feed_forward.up_proj.weight",
    "mlp.down": "feed_forward.down_proj.weight",
})  # fmt: skip
LLAMA4_EXPERTS = _in_layer({
    "mlp.router": "feed_forward.router.weight",
    "mlp.down": Stored("feed_forward.experts.down_proj"),
    "mlp.shared_gate": "feed_forward.shared_expert.gate_proj.weight",
    "mlp.shared_up": "feed_forward.shared_expert.up_proj.weight",
    "mlp.shared_down": "feed_forward.shared_expert.down_proj.weight",
})  # fmt: skip


# Experts beside the MLP, which is called as it always is; gate and up of all experts are halves of one tensor.
EXPERTS_BESIDE_MLP = _in_layer({
    "mlp.shared_gate": "mlp.gate_proj.weight",
    "mlp.shared_up": "mlp.up_proj.weight",
    "mlp.shared_down": "mlp.down_proj.weight",
    "mlp.router": "router.proj.weight",
    "mlp.router_scale": Stored("router.scale"),
    "mlp.expert_scale": Stored("router.per_expert_scale"),
    "mlp.shared_post_norm.scale": Stored("post_feedforward_layernorm_1.weight"),
    "mlp.routed_norm.scale": Stored("pre_feedforward_layernorm_2.weight"),
    "mlp.routed_post_norm.scale": Stored("post_feedforward_layernorm_2.weight"),
    "mlp.down": "experts.down_proj",
})  # fmt: skip
LAYER_INPUT = _in_layer({
    "layer_input.input_gate": "per_layer_input_gate.weight",
    "layer_input.input_out": "per_layer_projection.weight",
    "layer_input.norm.scale": Stored("post_per_layer_input_norm.weight"),
})  # fmt: skip
LAYER_EMBEDDINGS: dict[Path, Stored] = {
    ("layer_embeddings", "table"): Stored("model.embed_tokens_per_layer.weight"),
    ("layer_embeddings", "context"): Stored("model.per_layer_model_projection.weight", transposed=True),
    ("layer_embeddings", "norm", "scale"): Stored("model.per_layer_projection_norm.weight"),
}
PACKED, PACKED_DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
LAYER_SCALAR = _in_layer({"scalar": Stored("layer_scalar")})


def _biased_experts(config: ModelConfig) -> Names:
    assert config.experts is not None
    E, D, F = config.experts.count, config.d_model, config.experts.d_ff
    names = dict(BIASED_EXPERTS)
    for kind, whole in (("", (E, D, 2 * F)), ("_bias", (E, 2 * F))):
        stored = names[LAYERS, "mlp", f"gate{kind}"]
        for name, first in (("gate", 0), ("up", 1)):
            part = Part((*[0] * (len(whole) - 1), first), whole, step=2)
            names[LAYERS, "mlp", f"{name}{kind}"] = replace(stored, part=part)
    return names


def _halves(config: ModelConfig, stored: Stored) -> Names:
    """Return the names of gate and up in a tensor of all experts."""
    assert config.experts is not None
    E, D, F = config.experts.count, config.d_model, config.experts.d_ff
    whole = stored.order((E, D, 2 * F))
    return {
        (LAYERS, "mlp", name): replace(stored, part=Part(stored.order((0, 0, first)), whole))
        for name, first in (("gate", 0), ("up", F))
    }


def packed(config: ModelConfig, *, transposed: bool) -> dict[Path, Stored]:
    """Return the names of experts' matrices in files that hold those of all experts in one tensor.

    transposed: matrices stand there as [out, in], which is how Qwen 3.5 is released, and Qwen3-VL is not.
    """
    named: dict[str, str | Stored] = {
        "mlp.gate": Stored(PACKED, transposed),
        "mlp.down": Stored(PACKED_DOWN, transposed),
    }
    [gate_up, down] = _in_layer(named).values()
    names: dict[Path, Stored] = {}
    for group in config.groups:
        if group.config.experts is not None and group.config.experts.is_linear:
            of_group = {**_halves(group.config, gate_up), (LAYERS, "mlp", "down"): down}
            names |= {(group.name, *path[1:]): replace(one, layers=group.numbers) for path, one in of_group.items()}
    return names


def _llama4(config: ModelConfig) -> Names:
    if config.experts is None:
        return LLAMA4_MLP
    [stored] = _in_layer({"mlp.gate": Stored("feed_forward.experts.gate_up_proj")}).values()
    return {**LLAMA4_EXPERTS, **_halves(config, stored)}


def _experts_beside_mlp(config: ModelConfig) -> Names:
    [stored] = _in_layer({"mlp.gate": "experts.gate_up_proj"}).values()
    return {**EXPERTS_BESIDE_MLP, **_halves(config, stored)}


FUSED = {"phi3": (("self_attn.qkv_proj", ("q", "k", "v")), ("mlp.gate_up_proj", ("gate", "up")))}
"""By family: modules that hold several of our matrices, one behind the other."""


TEXT_PART = "language_model."
"""Prefix of the text part's names in a model with images, as the released files have it."""


def is_of_layer(path: Path) -> bool:
    """Return True if a weight belongs to the layers."""
    return path[0].partition("_")[0] == LAYERS


def group_number(path: Path) -> int:
    """Return the number of the group of layers that a weight belongs to (`ModelConfig.groups`)."""
    return int(path[0].partition("_")[2] or 0)


def table(config: ModelConfig) -> dict[Path, Stored]:
    """Return the names of this model's weights; a tied head has none of its own."""
    names = WHOLE | (LAYER_EMBEDDINGS if config.layer_embeddings is not None else {})
    if config.tied_head:
        del names["head",]
    for group in config.groups:
        for path, stored in _of_layers(group.config).items():
            names[group.name, *path[1:]] = replace(stored, layers=group.numbers)
    return names if config.vision is None else names | vision_names.names(config.vision, config.d_model)


def in_files(config: ModelConfig) -> dict[Path, Stored]:
    """Return the names in files: of a model with images, those of its text part have a prefix."""
    names = table(config)
    if config.vision is None:
        return names
    is_inside = isinstance(config.vision, QwenVision | Gemma4Vision)
    if isinstance(config.vision, QwenVision) and config.vision.model_type == "qwen3_vl_moe":
        names |= packed(config, transposed=False)
    return {
        path: stored if path[0] == vision_names.VISION else replace(stored, name=_of_text_part(stored.name, is_inside))
        for path, stored in names.items()
    }


def _of_text_part(name: str, is_inside: bool) -> str:
    """Return the name of a weight beside a vision tower. is_inside: both are in `model`, with the head beside them."""
    return name.replace("model.", f"model.{TEXT_PART}", 1) if is_inside else f"{TEXT_PART}{name}"


def _attention(config: ModelConfig) -> Names:
    if config.delta is not None:
        return {**DELTA, **(DELTA_BY_HEAD if config.delta.by_head else DELTA_APART)}
    if config.latent is None:
        return ATTENTION
    absent = ("q",) if config.latent.query_rank else ("q_down", "q_norm", "q_up", "q_down_bias")
    weights = LATENT_ATTENTION | (LATENT_BIAS if config.qkv_bias else {})
    named = {path: stored for path, stored in weights.items() if path[2] not in absent}
    return named if config.latent.own_indexer is None else named | INDEXER


def _of_layers(config: ModelConfig) -> Names:
    """Return the names of weights of layers of one kind."""
    norms = NORMS if not config.post_norms else FOUR_NORMS if config.pre_norms else POST_NORMS
    parts: list[Names] = [_attention(config), norms]
    parts += [QKV_BIAS] * (config.qkv_bias and config.latent is None) + [O_BIAS] * config.o_bias
    parts += [QK_NORM] * (config.qk_norm and config.delta is None) + [SINKS] * config.sinks
    parts += [LAYER_INPUT] * (config.layer_embeddings is not None) + [LAYER_SCALAR] * config.layer_scalars
    if config.family == "llama4_text":
        parts += [_llama4(config)]
    elif config.family == "mixtral":
        parts += [MIXTRAL_EXPERTS]
    elif config.experts is not None and config.experts.beside_mlp:
        parts += [_experts_beside_mlp(config)]
    elif config.experts is None:
        parts += [MLP] + [MLP_BIAS] * config.mlp_bias
    else:
        experts = config.experts
        parts += [_biased_experts(config) if experts.biased else EXPERTS] + [ROUTER_CORRECTION] * experts.corrected
        parts += [GATED_SHARED_EXPERT if experts.shared_gated else SHARED_EXPERT] * bool(experts.shared_d_ff)
    parts += [_fused(config)]
    named = {path: stored for part in parts for path, stored in part.items()}
    return {path: stored for path, stored in named.items() if path[1] != "attention" or path[2] not in config.absent}


def _fused(config: ModelConfig) -> Names:
    """Return the names of matrices that share a tensor."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    rows = {"q": q, "k": kv, "v": kv, "gate": config.d_ff, "up": config.d_ff}
    names: dict[Path, Stored] = {}
    for module, matrices in FUSED.get(config.family, ()):
        part, total, first = ("attention" if "q" in matrices else "mlp"), sum(rows[name] for name in matrices), 0
        for name in matrices:
            [(path, stored)] = _in_layer({f"{part}.{name}": f"{module}.weight"}).items()
            names[path] = replace(stored, part=Part((first, 0), (total, config.d_model)))
            first += rows[name]
    return names
