"""Keys that families share in `config.json`: sizes, tokens, local layers, the balance of experts."""

from collections.abc import Callable
from typing import Any

from pttrainer.models.config import Experts, ModelConfig
from pttrainer.models.families.config_json import rope_fields
from pttrainer.models.families.config_json.fields import REQUIRED, Fields
from pttrainer.models.families.config_json.rope_fields import GLOBAL, LOCAL

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
"""Hugging Face's name to ours."""
MOST_LAYERS = 10_000

WRITTEN_ACTIVATIONS = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu"}


def read(
    fields: Fields,
    *,
    head_dim: int | None = None,
    heads: int | Any = REQUIRED,
    kv_heads: int | None = None,
    vocab_size: int | Any = REQUIRED,
    max_positions: int = 2048,
    tied: bool = False,
    bos: tuple[int, ...] = (),
    eos: tuple[int, ...] = (),
    pad: tuple[int, ...] = (),
    norm_eps: float = 1e-6,
) -> dict[str, Any]:
    """Return arguments of ModelConfig; named parameters are the family's defaults.

    Without head_dim a head is hidden_size / heads.
    """
    # Dropout would act in training only; nothing here drops.
    fields.choice("attention_dropout", (0.0,), 0.0)
    d_model, N = fields.integer("hidden_size"), fields.integer("num_attention_heads", heads)
    bos_ids, pad_ids = fields.ids("bos_token_id", bos), fields.ids("pad_token_id", pad)
    return {
        "vocab_size": fields.integer("vocab_size", vocab_size),
        "d_model": d_model,
        "layers": fields.integer("num_hidden_layers", most=MOST_LAYERS),
        "heads": N,
        "kv_heads": fields.nullable("num_key_value_heads", fields.integer, kv_heads or N) or N,
        "head_dim": fields.integer("head_dim", head_dim or d_model // N),
        "d_ff": fields.integer("intermediate_size"),
        "norm_eps": fields.number("rms_norm_eps", norm_eps),
        "tied_head": fields.flag("tie_word_embeddings", tied),
        "max_positions": fields.integer("max_position_embeddings", max_positions),
        "bos_id": bos_ids[0] if bos_ids else None,
        "eos_ids": fields.ids("eos_token_id", eos),
        "pad_id": pad_ids[0] if pad_ids and pad_ids[0] >= 0 else None,
    }


def activation(fields: Fields, key: str, default: str) -> str:
    """Return our name of the activation under this key."""
    return ACTIVATIONS[fields.choice(key, tuple(ACTIVATIONS), default)]


def written_activation(config: ModelConfig) -> str:
    """Return Hugging Face's name of the activation."""
    return WRITTEN_ACTIVATIONS[config.activation]


def write(config: ModelConfig, architecture: str, model_type: str) -> dict[str, Any]:
    """Return the keys that `read` reads."""
    eos = list(config.eos_ids)
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.d_ff,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_head,
        "max_position_embeddings": config.max_positions,
        "bos_token_id": config.bos_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "pad_token_id": config.pad_id,
        "attention_dropout": 0.0,
    }


def read_plain(
    fields: Fields, *, theta: float = 10_000.0, unread: tuple[str, ...] = (), **defaults: Any
) -> dict[str, Any]:
    """Return what `read` does, one rotary embedding, the activation and biases, in the keys of most families.

    unread: keys of the rotary embedding that change nothing here.
    """
    common = read(fields, **defaults)
    bias = fields.flag("attention_bias", False)
    return {
        **common,
        "rope": rope_fields.read(fields, theta, common["max_positions"], unread=unread),
        "activation": activation(fields, "hidden_act", "silu"),
        "qkv_bias": bias,
        "o_bias": bias,
    }


def write_plain(config: ModelConfig, architecture: str) -> dict[str, Any]:
    """Return the keys that `read_plain` reads."""
    return {
        **write(config, architecture, config.family),
        **rope_fields.write(config.rope),
        "hidden_act": written_activation(config),
        "attention_bias": config.qkv_bias,
    }


def local_layers(fields: Fields, layers: int, is_local: Callable[[int], bool]) -> tuple[bool, ...]:
    """Return one flag per layer; `is_local` is the rule if the file lists no types. Empty if no layer is local."""
    listed = fields.value("layer_types", None)
    if listed is None:
        flags = tuple(is_local(layer) for layer in range(layers))
    else:
        if not isinstance(listed, list) or len(listed) != layers or any(kind not in (LOCAL, GLOBAL) for kind in listed):
            fields.refuse("layer_types", f"a list of {layers} of {GLOBAL}, {LOCAL}")
        flags = tuple(kind == LOCAL for kind in listed)
    return flags if any(flags) else ()


def layer_types(config: ModelConfig) -> list[str]:
    """Return the value of `layer_types`."""
    return [LOCAL if config.is_local(layer) else GLOBAL for layer in range(config.layers)]


def read_balance(fields: Fields) -> float:
    """Return the load-balance weight; as in transformers, only files that output router logits have one."""
    coefficient = fields.number("router_aux_loss_coef", 0.001)
    return coefficient if fields.flag("output_router_logits", False) else 0.0


def write_balance(experts: Experts) -> dict[str, Any]:
    """Return the keys that `read_balance` reads."""
    if not experts.balance_coefficient:
        return {"output_router_logits": False}
    return {"output_router_logits": True, "router_aux_loss_coef": experts.balance_coefficient}
