"""What a model looks like: read from Hugging Face's `config.json`, and written back to it.

One frozen, hashable value describes every family that the decoder can compute. What is left out: weights,
number formats and layout over devices. A config that asks for something the decoder does not compute is
refused here, because computing something else in silence is the worst of all outcomes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pttrainer.errors import ConfigError


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's change of the rotary frequencies: long wavelengths are stretched by `factor`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer. Sizes in elements; `family` selects the table of weight names."""

    family: str
    vocab_size: int
    d_model: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    d_ff: int
    rope_theta: float = 10_000.0
    rope_scaling: Llama3Scaling | None = None
    norm_eps: float = 1e-5
    tied_head: bool = False
    max_positions: int = 4096
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"config.json num_attention_heads: {self.heads}: must be a multiple of "
                f"num_key_value_heads ({self.kv_heads})"
            )
        if self.head_dim % 2:
            raise ConfigError(f"config.json head_dim: {self.head_dim}: rotary embedding needs an even head size")

    @property
    def parameters(self) -> int:
        """Number of weights."""
        attention = self.d_model * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.d_model * self.d_ff + 2 * self.d_model
        embeddings = self.vocab_size * self.d_model * (1 if self.tied_head else 2)
        return self.layers * layer + embeddings + self.d_model


def from_hf(raw: Mapping[str, Any]) -> ModelConfig:
    """The config in a Hugging Face `config.json`; raises ConfigError on what the decoder does not compute."""
    family = str(raw.get("model_type", ""))
    if family not in SUPPORTED_FAMILIES:
        raise ConfigError(
            f"config.json model_type: {family!r}: not supported yet; accepted: {', '.join(SUPPORTED_FAMILIES)}"
        )
    _refuse_what_is_not_computed(raw)
    heads = int(_required(raw, "num_attention_heads"))
    d_model = int(_required(raw, "hidden_size"))
    return ModelConfig(
        family=family,
        vocab_size=int(_required(raw, "vocab_size")),
        d_model=d_model,
        layers=int(_required(raw, "num_hidden_layers")),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or d_model // heads),
        d_ff=int(_required(raw, "intermediate_size")),
        rope_theta=_rope_theta(raw),
        rope_scaling=_rope_scaling(raw),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        tied_head=bool(raw.get("tie_word_embeddings", False)),
        max_positions=int(raw.get("max_position_embeddings", 2048)),
        bos_id=_ids(raw.get("bos_token_id"))[0] if _ids(raw.get("bos_token_id")) else None,
        eos_ids=_ids(raw.get("eos_token_id")),
    )


def to_hf(config: ModelConfig) -> dict[str, Any]:
    """The `config.json` that `transformers` reads for this model."""
    raw: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.d_ff,
        "hidden_act": "silu",
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_head,
        "max_position_embeddings": config.max_positions,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
    }
    if config.bos_id is not None:
        raw["bos_token_id"] = config.bos_id
    if config.eos_ids:
        raw["eos_token_id"] = config.eos_ids[0] if len(config.eos_ids) == 1 else list(config.eos_ids)
    if config.rope_scaling is not None:
        raw["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": config.rope_scaling.factor,
            "low_freq_factor": config.rope_scaling.low_freq_factor,
            "high_freq_factor": config.rope_scaling.high_freq_factor,
            "original_max_position_embeddings": config.rope_scaling.original_max_positions,
        }
    return raw


SUPPORTED_FAMILIES = ("llama",)


def _required(raw: Mapping[str, Any], key: str) -> Any:
    if key not in raw:
        raise ConfigError(f"config.json {key}: missing; hint: is this the config.json of a language model?")
    return raw[key]


def _refuse_what_is_not_computed(raw: Mapping[str, Any]) -> None:
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ConfigError(f"config.json hidden_act: {activation!r}: not supported yet; accepted: silu")
    for key in ("attention_bias", "mlp_bias"):
        if raw.get(key):
            raise ConfigError(f"config.json {key}: true: not supported yet; accepted: false")


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Newer files keep theta and scaling in `rope_parameters`, older ones the scaling in `rope_scaling`."""
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _rope_theta(raw: Mapping[str, Any]) -> float:
    return float(_rope(raw).get("rope_theta", raw.get("rope_theta", 10_000.0)))


def _rope_scaling(raw: Mapping[str, Any]) -> Llama3Scaling | None:
    rope = _rope(raw)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ConfigError(f"config.json rope type: {kind!r}: not supported yet; accepted: default, llama3")
    return Llama3Scaling(
        factor=float(_required(rope, "factor")),
        low_freq_factor=float(_required(rope, "low_freq_factor")),
        high_freq_factor=float(_required(rope, "high_freq_factor")),
        original_max_positions=int(_required(rope, "original_max_position_embeddings")),
    )


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    """Some files name one end token, some a list: an end token that is forgotten makes endless samples."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
