"""The layers of a model by kind: those of one kind are stacked, and a program holds one body for them.

Where kinds of layers take turns, one loop visits their groups in turn (`Scan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pttrainer.models.config.model_config import ModelConfig

FLAGS = ("local_layers", "dense_layers", "delta_layers", "borrowing_layers", "following_layers")
"""Fields of a config with an entry for each layer."""
LAYERS = "layers"
"""Name of the stacked layers in a tree of weights; with several groups, a number follows."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers of one kind whose weights are stacked.

    numbers: of these layers; config: of a model that has no others, whose layers are counted from 0.
    """

    name: str
    numbers: range
    config: ModelConfig


Scan = tuple[LayerGroup, ...]
"""One loop over layers in which a period of kinds repeats: a group for each place in the period, all equally long."""


def scans(config: ModelConfig) -> tuple[Scan, ...]:
    """Return the loops over layers, in order. Layers that differ only in what they see (`is_local`) are of one kind."""
    apart = config.local_l2_norm or config.global_heads is not None or any(config.borrowing_layers)
    kinds = [
        (
            config.is_dense(layer),
            config.is_delta(layer),
            apart and config.is_local(layer),
            config.borrows(layer),
            config.follows(layer),
        )
        for layer in range(config.layers)
    ]
    if len(set(kinds)) == 1:
        return ((_group(config, LAYERS, range(config.layers)),),)
    made: list[Scan] = []
    for numbers in periods(kinds):
        first = sum(map(len, made))
        made.append(tuple(_group(config, f"{LAYERS}_{first + n}", each) for n, each in enumerate(numbers)))
    return tuple(made)


def _group(config: ModelConfig, name: str, numbers: range) -> LayerGroup:
    of_kind = with_layers(config, numbers)
    experts = None if of_kind.is_dense(0) else config.experts
    delta = config.delta if of_kind.is_delta(0) else None
    changes: dict[str, Any] = {"dense_layers": (), "delta_layers": (), "experts": experts, "delta": delta}
    if of_kind.borrows(0) and config.borrowing_d_ff is not None:
        changes["d_ff"] = config.borrowing_d_ff
        if experts is not None and experts.beside_mlp:
            changes["experts"] = replace(experts, shared_d_ff=config.borrowing_d_ff)
    if of_kind.follows(0):
        assert config.latent is not None
        assert config.latent.indexer is not None
        changes["latent"] = replace(config.latent, indexer=replace(config.latent.indexer, shared=True))
    if config.global_heads is not None and not of_kind.is_local(0):
        changes |= vars(config.global_heads)
    return LayerGroup(name, numbers, replace(of_kind, **changes))


def with_layers(config: ModelConfig, numbers: range) -> ModelConfig:
    """Return the config of a model with only these layers."""

    def chosen(flags: tuple[bool, ...]) -> tuple[bool, ...]:
        return tuple(flags[layer] for layer in numbers) if flags else ()

    flags = {name: chosen(getattr(config, name)) for name in FLAGS}
    changes: dict[str, Any] = {"layers": len(numbers), **flags}
    return replace(config, **changes)


def periods(kinds: Sequence[Any]) -> list[list[range]]:
    """Cut a sequence of layers into runs with a repeating period, so that all periods together are shortest.

    A program holds one body for each place of each period. Returns the layers' numbers, by run and place.
    """
    ends: dict[int, tuple[int, list[list[range]]]] = {len(kinds): (0, [])}
    for first in reversed(range(len(kinds))):
        choices = []
        for period in range(1, len(kinds) - first + 1):
            end = first + period
            while end + period <= len(kinds) and kinds[end : end + period] == kinds[first : first + period]:
                end += period
            cost, rest = ends[end]
            choices.append((period + cost, [[range(first + n, end, period) for n in range(period)], *rest]))
        ends[first] = min(choices, key=lambda choice: (choice[0], len(choice[1])))
    return ends[0][1]
