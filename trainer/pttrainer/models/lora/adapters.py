"""Low-rank adapters (LoRA, arXiv 2106.09685): small trained matrices beside large frozen ones.

    x·W  becomes  x·W + scale · (x·A)·B      scale = alpha / rank, or alpha / √rank (rsLoRA, arXiv 2312.03732)

Adapters stand in the same tree as the weights, beside their matrix: `attention.q` and `attention.q_lora.{a,b}`.
So whatever takes a model's weights takes them too: training, scoring, rollout. What differs is only which part
of the tree is trained (`only`, `without`, `join`). B starts at zero, so a fresh adapter changes nothing.

Targets are the linear layers of attention and MLP, of Qwen 3 MoE router and every expert's among them; embedding
and head where asked for. Left out: the experts of gpt-oss, which PEFT's `all-linear` leaves out too. Their numbers are
made and merged in `adapter_numbers`; nothing here imports jax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pttrainer.errors import ConfigError
from pttrainer.models.config import ModelConfig
from pttrainer.models.parameters import Weights, low_rank
from pttrainer.models.weights.hf_names import Path, Stored, table

SUFFIX = "_lora"
"""Of the name of a matrix's adapter."""

ATTENTION = ("q", "k", "v", "o")
MLP = ("gate", "up", "down")
"""Of a model with experts: of each of them."""
ROUTER = ("router",)
EMBEDDING, HEAD = "embedding_lora", "head_lora"
TABLES = (EMBEDDING, HEAD)
"""Adapters of tables [V, D]: `a` is [V, rank] and `b` [rank, D]."""
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""What PEFT puts before a weight's name."""
EMBED_TOKENS, LM_HEAD = f"{PREFIX}model.embed_tokens", f"{PREFIX}lm_head"


@dataclass(frozen=True)
class Adapters:
    """Which matrices have adapters, and their numbers."""

    rank: int
    alpha: float
    matrices: tuple[str, ...]
    is_rank_stabilised: bool = False
    dropout: float = 0.0
    """Of training (`pttrainer.train_step.lora_dropout`); an export says it."""
    embeddings: bool = False
    """Whether embedding and head have adapters too; a tied head has the embedding's."""

    @property
    def scale(self) -> float:
        """Factor of A·B."""
        return self.alpha / (self.rank**0.5 if self.is_rank_stabilised else self.rank)


def matrices(config: ModelConfig, targets: str) -> tuple[str, ...]:
    """The matrices that the spec's word means in this model, as PEFT understands it; raises ConfigError where there
    are none: the experts of gpt-oss are no linear layers there."""
    experts = config.experts
    if experts is None or not experts.biased:
        router = () if experts is None else ROUTER
        return {"all-linear": ATTENTION + router + MLP, "attention": ATTENTION, "mlp": MLP}[targets]
    if targets == "mlp":
        raise ConfigError(
            f"spec.training.lora.targets: mlp: {config.family} has experts in place of the MLP, and these get no "
            "adapters; accepted: all-linear, attention (here the same: q_proj, k_proj, v_proj, o_proj)"
        )
    return ATTENTION


def only(tree: dict[str, Any]) -> dict[str, Any]:
    """The adapters of a tree."""
    inner = {key: value if key.endswith(SUFFIX) else only(value) for key, value in tree.items() if _is_inner(value)}
    return {key: value for key, value in inner.items() if value}


def without(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree without its adapters."""
    kept = {key: value for key, value in tree.items() if not key.endswith(SUFFIX)}
    return {key: without(value) if _is_inner(value) else value for key, value in kept.items()}


def join(frozen: dict[str, Any], adapters: dict[str, Any]) -> dict[str, Any]:
    """One tree of both; arrays are not copied."""
    new = {key: value for key, value in adapters.items() if key not in frozen}
    return {key: join(value, adapters[key]) if key in adapters else value for key, value in frozen.items()} | new


def is_adapter(path: Path) -> bool:
    """Whether a weight belongs to an adapter."""
    return any(name.endswith(SUFFIX) for name in path)


def beside(config: ModelConfig, adapters: Adapters | None, weights: Weights) -> Weights:
    """The adapters' own weights. The experts of gpt-oss have none."""
    if adapters is None:
        return {}
    found = {path: one for path, one in weights.items() if path[0] == "layers" and path[-1] in adapters.matrices}
    if config.experts is not None and config.experts.biased:
        found = {path: one for path, one in found.items() if path[1] != "mlp" or path[-1] in ROUTER}
    if adapters.embeddings:
        found |= {path: one for path, one in weights.items() if path in (("embedding",), ("head",))}
    return {
        (*path[:-1], f"{path[-1]}{SUFFIX}", name): part
        for path, one in found.items()
        for name, part in low_rank(one, adapters.rank).items()
    }


def names(config: ModelConfig, adapters: Adapters) -> dict[Path, Stored]:
    """Where PEFT stores each adapter."""
    found: dict[Path, Stored] = {}
    for path, stored in table(config).items():
        if path[-1] in adapters.matrices and path[0] == "layers":
            beside, module = (*path[:-1], f"{path[-1]}{SUFFIX}"), PREFIX + stored.name.removesuffix(".weight")
            found[*beside, "a"] = Stored(f"{module}.lora_A.weight", transposed=True)
            found[*beside, "b"] = Stored(f"{module}.lora_B.weight", transposed=True)
    if adapters.embeddings:
        found[EMBEDDING, "a"] = Stored(f"{EMBED_TOKENS}.lora_embedding_A", transposed=True)
        found[EMBEDDING, "b"] = Stored(f"{EMBED_TOKENS}.lora_embedding_B", transposed=True)
        if not config.tied_head:  # a linear layer, from D to V: its A is our b
            found[HEAD, "a"] = Stored(f"{LM_HEAD}.lora_B.weight")
            found[HEAD, "b"] = Stored(f"{LM_HEAD}.lora_A.weight")
    return found


def repeated(config: ModelConfig, adapters: Adapters) -> frozenset[str]:
    """What PEFT may store beside them and nobody needs: the tables themselves, a tied head's adapter once more."""
    if not adapters.embeddings:
        return frozenset()
    tables = {f"{module}.base_layer.weight" for module in (EMBED_TOKENS, LM_HEAD)}
    tied = {f"{LM_HEAD}.lora_{part}.weight" for part in "AB"} if config.tied_head else set()
    return frozenset(tables | tied)


def modules(config: ModelConfig, adapters: Adapters) -> list[str]:
    """PEFT's `target_modules`: the last part of each linear layer's name."""
    return sorted({stored.name.partition(".lora_")[0].split(".")[-1] for stored in names(config, adapters).values()})


def _is_inner(value: Any) -> bool:
    return isinstance(value, dict)
