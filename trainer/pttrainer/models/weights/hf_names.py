"""Weight names: a path in our tree on the left, Hugging Face's name on the right.

`{i}` is the layer and `{e}` the expert; our weights of all layers of a kind are stacked, and within them those of all
experts. A transposed weight is stored as [out, in] there and [in, out] here.
"""

from collections.abc import Mapping
from dataclasses import replace

from pttrainer.models.config import ModelConfig
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
# Already stacked, already [in, out]; gate and up alternate in one matrix.
BIASED_EXPERTS = _in_layer({
    "mlp.router": "mlp.router.weight",
    "mlp.router_bias": Stored("mlp.router.bias"),
    "mlp.gate_up": Stored("mlp.experts.gate_up_proj"),
    "mlp.gate_up_bias": Stored("mlp.experts.gate_up_proj_bias"),
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


def _llama4(config: ModelConfig) -> Names:
    experts = config.experts
    if experts is None:
        return LLAMA4_MLP
    E, D, F = experts.count, config.d_model, experts.d_ff
    [stored] = _in_layer({"mlp.gate": Stored("feed_forward.experts.gate_up_proj")}).values()
    halves = {
        (LAYERS, "mlp", name): replace(stored, part=Part((0, 0, first), (E, D, 2 * F)))
        for name, first in (("gate", 0), ("up", F))
    }
    return LLAMA4_EXPERTS | halves


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
    names = dict(WHOLE)
    if config.tied_head:
        del names["head",]
    for group in config.groups:
        for path, stored in _of_layers(group.config).items():
            names[group.name, *path[1:]] = replace(stored, layers=group.numbers)
    return names if config.vision is None else names | vision_names.names(config.vision)


def in_files(config: ModelConfig) -> dict[Path, Stored]:
    """Return the names in files: of a model with images, those of its text part have a prefix."""
    names = table(config)
    if config.vision is None:
        return names
    return {
        path: stored if path[0] == vision_names.VISION else replace(stored, name=f"{TEXT_PART}{stored.name}")
        for path, stored in names.items()
    }


def _attention(config: ModelConfig) -> Names:
    if config.delta is not None:
        return {**DELTA, **(DELTA_BY_HEAD if config.delta.by_head else DELTA_APART)}
    if config.latent is None:
        return ATTENTION
    absent = ("q",) if config.latent.query_rank else ("q_down", "q_norm", "q_up")
    return {path: stored for path, stored in LATENT_ATTENTION.items() if path[2] not in absent}


def _of_layers(config: ModelConfig) -> Names:
    """Return the names of weights of layers of one kind."""
    norms = NORMS if not config.post_norms else FOUR_NORMS if config.pre_norms else POST_NORMS
    parts: list[Names] = [_attention(config), norms]
    parts += [QKV_BIAS] * config.qkv_bias + [O_BIAS] * config.o_bias
    parts += [QK_NORM] * (config.qk_norm and config.delta is None) + [SINKS] * config.sinks
    if config.family == "llama4_text":
        parts += [_llama4(config)]
    elif config.experts is None:
        parts += [MLP] + [MLP_BIAS] * config.mlp_bias
    else:
        experts = config.experts
        parts += [BIASED_EXPERTS if experts.biased else EXPERTS] + [ROUTER_CORRECTION] * experts.corrected
        parts += [GATED_SHARED_EXPERT if experts.shared_gated else SHARED_EXPERT] * bool(experts.shared_d_ff)
    parts += [_fused(config)]
    return {path: stored for part in parts for path, stored in part.items()}


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
