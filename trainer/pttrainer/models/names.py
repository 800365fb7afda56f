"""Weight names: a path in our tree on the left, Hugging Face's name on the right, one table per family.

`{i}` is the layer. A transposed weight is stored as [out, in] there and [in, out] here.
"""

from __future__ import annotations

from dataclasses import dataclass

from pttrainer.models.config import ModelConfig

Path = tuple[str, ...]


@dataclass(frozen=True)
class Stored:
    """Where a weight is in a checkpoint."""

    name: str
    transposed: bool = False


LLAMA: dict[Path, Stored] = {
    ("embedding",): Stored("model.embed_tokens.weight"),
    ("layers", "attention_norm", "scale"): Stored("model.layers.{i}.input_layernorm.weight"),
    ("layers", "attention", "q"): Stored("model.layers.{i}.self_attn.q_proj.weight", transposed=True),
    ("layers", "attention", "k"): Stored("model.layers.{i}.self_attn.k_proj.weight", transposed=True),
    ("layers", "attention", "v"): Stored("model.layers.{i}.self_attn.v_proj.weight", transposed=True),
    ("layers", "attention", "o"): Stored("model.layers.{i}.self_attn.o_proj.weight", transposed=True),
    ("layers", "mlp_norm", "scale"): Stored("model.layers.{i}.post_attention_layernorm.weight"),
    ("layers", "mlp", "gate"): Stored("model.layers.{i}.mlp.gate_proj.weight", transposed=True),
    ("layers", "mlp", "up"): Stored("model.layers.{i}.mlp.up_proj.weight", transposed=True),
    ("layers", "mlp", "down"): Stored("model.layers.{i}.mlp.down_proj.weight", transposed=True),
    ("norm", "scale"): Stored("model.norm.weight"),
    ("head",): Stored("lm_head.weight"),
}

TABLES: dict[str, dict[Path, Stored]] = {"llama": LLAMA}


def table(config: ModelConfig) -> dict[Path, Stored]:
    """The names of this model's weights; a tied head has none of its own."""
    return {path: stored for path, stored in TABLES[config.family].items() if not (config.tied_head and path == ("head",))}
