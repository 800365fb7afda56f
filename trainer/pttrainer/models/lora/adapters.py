"""Low-rank adapters (LoRA, arXiv 2106.09685): small trained matrices beside large frozen ones.

x·W  becomes  x·W + scale · (x·A)·B      scale = alpha / rank, or alpha / √rank (rsLoRA, arXiv 2312.03732)

Adapters are in the same tree as the weights, beside their matrix: `attention.q` and `attention.q_lora.{a,b}`. So
whatever takes a model's weights takes them too: training, scoring, rollout. Only the trained part of the tree differs
(`only_adapters`, `without_adapters`, `join`). B starts at zero, so a fresh adapter changes nothing.

Targets are the linear layers of attention and MLP, including router and experts of Qwen 3 MoE; embedding and head on
request, and so are the matrices of a vision tower and of its projector. Left out: the experts of gpt-oss, which PEFT's
`all-linear` leaves out too, and what cuts pictures into patches. `init_and_merge` initialises and merges them; nothing
here imports jax.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

from pttrainer.errors import ConfigError
from pttrainer.models.config import Llama4Vision, ModelConfig
from pttrainer.models.config.layer_groups import LAYERS
from pttrainer.models.shapes import parameters
from pttrainer.models.shapes.parameters import LAYER_EMBEDDINGS, Weights, low_rank
from pttrainer.models.vision.names import VISION, module_name
from pttrainer.models.weights.hf_names import Part, Path, Stored, is_of_layer, table

SUFFIX = "_lora"
"""Suffix of an adapter's name."""

ATTENTION = ("q", "k", "v", "o")
LATENT = ("q", "q_down", "q_up", "kv_down", "kv_up", "o")
"""Of latent attention; a model has either the first one, or the two that follow."""
DELTA = ("qkvz", "ba", "qkv", "z", "b", "a")
"""Of a gated delta rule, besides the matrix of its results; a model has either the first two, or the others."""
MLP = ("gate", "up", "down")
"""In a model with experts: of each expert."""
ROUTER = ("router",)
SHARED = ("shared_gate", "shared_up", "shared_down")
"""Of the expert that all tokens use."""
LAYER_INPUT = ("input_gate", "input_out")
"""By which a layer reads its own embedding of a token."""
CONTEXT = ("context",)
"""Of the first embedding to all layers' own ones."""
EMBEDDING, HEAD = "embedding_lora", "head_lora"
TABLES = (EMBEDDING, HEAD)
"""Adapters of tables [V, D]: `a` is [V, rank] and `b` [rank, D]."""
PROJECTIONS = ("merge", "inner", "outer", "projection")
"""Of projectors, which make the decoder's embeddings of a tower's patches."""
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""PEFT's prefix of weight names."""
EMBED_TOKENS, LM_HEAD = f"{PREFIX}model.embed_tokens", f"{PREFIX}lm_head"
TEXT_PART, LLAMA4_TEXT_PART = "model.language_model.", "language_model."
"""Where transformers has the decoder of a model with images; Llama 4's with its head."""


@dataclass(frozen=True)
class Adapters:
    """Which matrices have adapters, and their hyperparameters."""

    rank: int
    alpha: float
    matrices: tuple[str, ...]
    is_rank_stabilised: bool = False
    dropout: float = 0.0
    """Of training (`pttrainer.train_step.lora_dropout`); an export says it."""
    embeddings: bool = False
    """Whether embedding and head have adapters too; a tied head has the embedding's."""
    vision: tuple[Path, ...] = ()
    """Matrices with adapters of the vision tower and its projector, by their places in the tree of weights."""

    @property
    def scale(self) -> float:
        """Return the factor of A·B."""
        return self.alpha / (self.rank**0.5 if self.is_rank_stabilised else self.rank)


def matrices(config: ModelConfig, targets: str) -> tuple[str, ...]:
    """Return the matrices of a spec's target in this model, as PEFT understands it; raise ConfigError if none.

    The experts of gpt-oss, Llama 4 and Gemma 4 are not linear layers in PEFT.
    """
    experts = config.experts
    there = {name for group in config.groups for name in parameters.attention(group.config)}
    attention = tuple(name for name in dict.fromkeys((*ATTENTION, *LATENT, *DELTA)) if name in there)
    if experts is None or experts.is_linear:
        # A router of sigmoids is no linear layer in transformers, so PEFT's all-linear leaves it out.
        router = () if experts is None or experts.sigmoid else ROUTER
        mlp = MLP + (SHARED if experts is not None and experts.shared_d_ff else ())
        own = LAYER_INPUT + CONTEXT if config.layer_embeddings is not None else ()
        return {"all-linear": attention + router + mlp + own, "attention": attention, "mlp": mlp}[targets]
    if experts.beside_mlp:  # the MLP is linear, and so is the router
        return {"all-linear": attention + ROUTER + SHARED, "attention": attention, "mlp": SHARED}[targets]
    if targets == "mlp":
        raise ConfigError(
            f"spec.training.lora.targets: mlp: {config.family} has experts in place of the MLP, and these get no "
            "adapters; accepted: all-linear, attention (here the same: q_proj, k_proj, v_proj, o_proj)"
        )
    return ATTENTION


def vision_matrices(config: ModelConfig, targets: str) -> tuple[Path, ...]:
    """Return the matrices of a spec's target in this model's vision tower; its projector's belong to all-linear."""
    chosen = {"all-linear": ATTENTION + MLP, "attention": ATTENTION, "mlp": MLP}[targets]
    paths = [path for path in table(config) if path[0] == VISION]
    of_layers = tuple(path for path in paths if path[1] == LAYERS and path[-1] in chosen)
    if targets != "all-linear":
        return of_layers
    return of_layers + tuple(path for path in paths if path[1] != LAYERS and path[-1] in MLP + PROJECTIONS)


def check_peft(config: ModelConfig, adapters: Adapters | None, field: str) -> None:
    """Raise ConfigError if PEFT would not read all of these adapters; field: what asks for its layout.

    PEFT puts the adapters of `gate_proj` and its like on the experts alone where a model has experts.
    """
    if adapters is not None and adapters.embeddings and config.vision is not None:
        raise ConfigError(
            f"{field}: PEFT ties no adapters of embedding and head in a model with images; accepted: adapters merged "
            "into the weights, or spec.training.lora.embeddings: false"
        )
    has_more = config.experts is not None and (config.experts.shared_d_ff or any(config.dense_layers))
    if adapters is not None and has_more and not set(adapters.matrices).isdisjoint(MLP):
        raise ConfigError(
            f"{field}: PEFT reads no adapters of the shared expert, or of layers without experts, which "
            f"{config.family} has beside its experts; accepted: adapters merged into the weights, or "
            "spec.training.lora.targets: attention"
        )


def only_adapters(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the adapters of a tree."""
    inner = {
        key: value if key.endswith(SUFFIX) else only_adapters(value) for key, value in tree.items() if _is_inner(value)
    }
    return {key: value for key, value in inner.items() if value}


def without_adapters(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree without its adapters."""
    rest = {key: value for key, value in tree.items() if not key.endswith(SUFFIX)}
    return {key: without_adapters(value) if _is_inner(value) else value for key, value in rest.items()}


def join(frozen: dict[str, Any], adapters: dict[str, Any]) -> dict[str, Any]:
    """Join both into one tree; arrays are not copied."""
    new = {key: value for key, value in adapters.items() if key not in frozen}
    return {key: join(value, adapters[key]) if key in adapters else value for key, value in frozen.items()} | new


def is_adapter(path: Path) -> bool:
    """Return True if a weight belongs to an adapter."""
    return any(name.endswith(SUFFIX) for name in path)


def adapter_params(config: ModelConfig, adapters: Adapters | None, weights: Weights) -> Weights:
    """Return the specs of the adapters' own weights. The experts of gpt-oss and Llama 4 have none."""
    if adapters is None:
        return {}
    targets = {path: spec for path, spec in weights.items() if _is_adapted(path, adapters)}
    if config.experts is not None and not config.experts.is_linear:
        targets = {path: spec for path, spec in targets.items() if path[1] != "mlp" or path[-1] in ROUTER + SHARED}
    if adapters.embeddings:
        targets |= {path: spec for path, spec in weights.items() if path in (("embedding",), ("head",))}
    return {
        (*path[:-1], f"{path[-1]}{SUFFIX}", name): part
        for path, spec in targets.items()
        for name, part in low_rank(spec, adapters.rank).items()
    }


def names(config: ModelConfig, adapters: Adapters) -> dict[Path, Stored]:
    """Return where PEFT stores each adapter."""
    names_by_path: dict[Path, Stored] = {}
    places = _places_in_fused(config)
    for path, stored in table(config).items():
        if not _is_adapted(path, adapters):
            continue
        adapter_params, module = (*path[:-1], f"{path[-1]}{SUFFIX}"), PREFIX + _module(config, path, stored)
        if not _is_parameter(path, stored):
            of_a, of_b = (None, None) if stored.part is None else _parts(stored.part, *places[path], adapters.rank)
            names_by_path[*adapter_params, "a"] = Stored(f"{module}.lora_A.weight", True, stored.layers, of_a)
            names_by_path[*adapter_params, "b"] = Stored(f"{module}.lora_B.weight", True, stored.layers, of_b)
        else:  # a parameter [in, out], which PEFT reads as [out, in]: its A is our b
            names_by_path[*adapter_params, "a"] = Stored(f"{module}.lora_B.weight")
            names_by_path[*adapter_params, "b"] = Stored(f"{module}.lora_A.weight")
    if adapters.embeddings:
        names_by_path[EMBEDDING, "a"] = Stored(f"{EMBED_TOKENS}.lora_embedding_A", transposed=True)
        names_by_path[EMBEDDING, "b"] = Stored(f"{EMBED_TOKENS}.lora_embedding_B", transposed=True)
        if not config.tied_head:  # a linear layer, from D to V: its A is our b
            names_by_path[HEAD, "a"] = Stored(f"{LM_HEAD}.lora_B.weight")
            names_by_path[HEAD, "b"] = Stored(f"{LM_HEAD}.lora_A.weight")
    return {
        path: stored if path[0] == VISION else replace(stored, name=_of_text_part(config, stored.name))
        for path, stored in names_by_path.items()
    }


def _module(config: ModelConfig, path: Path, stored: Stored) -> str:
    """Return transformers' name of a matrix's module: of the text part without what stands before its name there."""
    module = stored.name.rpartition(".")[0] if _is_parameter(path, stored) else stored.name.removesuffix(".weight")
    return module_name(config.vision, module) if path[0] == VISION and config.vision is not None else module


def _is_parameter(path: Path, stored: Stored) -> bool:
    """Return True for a tower's matrix that is no linear layer: these are stored the other way round."""
    return path[0] == VISION and not stored.transposed


def _of_text_part(config: ModelConfig, name: str) -> str:
    """Return PEFT's name of a decoder's adapter, which is a part of the model where that has images."""
    if isinstance(config.vision, Llama4Vision):
        return name.replace(PREFIX, f"{PREFIX}{LLAMA4_TEXT_PART}", 1)
    return name if config.vision is None else name.replace(f"{PREFIX}model.", f"{PREFIX}{TEXT_PART}", 1)


def patterns(config: ModelConfig, adapters: Adapters) -> dict[str, dict[str, float]]:
    """Return PEFT's `rank_pattern` and `alpha_pattern`: of modules that hold several matrices, each with its adapter.

    The module's adapter is all of theirs in blocks, so its rank is their sum; alpha keeps the scale.
    """
    ranks: dict[str, float] = {}
    alphas: dict[str, float] = {}
    places = _places_in_fused(config)
    for path, stored in table(config).items():
        if path in places and _is_adapted(path, adapters):
            module, (_, count) = stored.name.split(".")[-2], places[path]
            ranks[module] = adapters.rank * count
            alphas[module] = adapters.alpha * (count**0.5 if adapters.is_rank_stabilised else count)
    return {"rank_pattern": ranks, "alpha_pattern": alphas} if ranks else {}


def _is_adapted(path: Path, adapters: Adapters) -> bool:
    """Return True if a matrix of the decoder's layers, or of the vision tower, has an adapter."""
    return path in adapters.vision or (_is_target(path) and path[-1] in adapters.matrices)


def _is_target(path: Path) -> bool:
    return is_of_layer(path) or path[0] == LAYER_EMBEDDINGS


def _places_in_fused(config: ModelConfig) -> dict[Path, tuple[int, int]]:
    """Return the place of each matrix among those of its module, and their number."""
    modules: dict[tuple[str, str], list[Path]] = {}
    for path, stored in table(config).items():
        if stored.part is not None and (_is_target(path) or path[0] == VISION):
            modules.setdefault((path[0], stored.name), []).append(path)
    return {path: (i, len(paths)) for paths in modules.values() for i, path in enumerate(paths)}


def _parts(of_matrix: Part, place: int, count: int, rank: int) -> tuple[Part, Part]:
    """Return the parts of a module's A and B that are one matrix's."""
    rows, inputs = of_matrix.whole
    of_b = Part((of_matrix.first[0], place * rank), (rows, count * rank))
    return Part((place * rank, 0), (count * rank, inputs)), of_b


def repeated(config: ModelConfig, adapters: Adapters) -> frozenset[str]:
    """Return names that PEFT may store redundantly: the tables themselves, a tied head's adapter again."""
    if not adapters.embeddings:
        return frozenset()
    tables = {f"{module}.base_layer.weight" for module in (EMBED_TOKENS, LM_HEAD)}
    tied = {f"{LM_HEAD}.lora_{part}.weight" for part in "AB"} if config.tied_head else set()
    return frozenset(_of_text_part(config, name) for name in tables | tied)


def modules(config: ModelConfig, adapters: Adapters) -> list[str]:
    """Return the last part of each linear layer's name."""
    no_layers = _parameters(config, adapters)
    stored = [one for path, one in names(config, adapters).items() if path[:-1] not in no_layers]
    return sorted({one.name.partition(".lora_")[0].split(".")[-1] for one in stored})


def target_modules(config: ModelConfig, adapters: Adapters) -> list[str] | str:
    """Return PEFT's `target_modules`: a pattern where a vision tower has modules of the same names."""
    own = modules(config, replace(adapters, vision=()))
    if config.vision is None:
        return own
    whole = table(config)
    linear = [_module(config, path, whole[path]) for path in adapters.vision if not _is_parameter(path, whole[path])]
    of_vision = sorted({re.escape(name).replace(r"\{i\}", r"\d+") for name in linear})
    return "|".join([rf"(.*\.)?language_model\..*({'|'.join(own)})", *of_vision])


def target_parameters(config: ModelConfig, adapters: Adapters) -> list[str]:
    """Return PEFT's `target_parameters`: of matrices that transformers has in a module of their own kind."""
    return sorted(_parameters(config, adapters).values())


def _parameters(config: ModelConfig, adapters: Adapters) -> dict[Path, str]:
    """Return transformers' name of each matrix with an adapter that is no linear layer, by the adapter's place."""
    whole = {path: stored for path, stored in table(config).items() if path in adapters.vision}
    return {
        (*path[:-1], f"{path[-1]}{SUFFIX}"): f"{_module(config, path, stored)}.{stored.name.rpartition('.')[2]}"
        for path, stored in whole.items()
        if _is_parameter(path, stored)
    }


def _is_inner(value: Any) -> bool:
    return isinstance(value, dict)
