"""What of a model its memory and time follow from: sizes, number formats, recomputation, adapters. No jax, no weights.

`Model` is a form that computes. Here stands what preflight's formula asks of either: the weights as plain data
(`declared`), those that are trained, and those that a sampler holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pttrainer.models import parameters
from pttrainer.models.config import ModelConfig
from pttrainer.models.lora import adapters as lora
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.parameters import Declared, Weights
from pttrainer.models.quantization import packed_matrix
from pttrainer.models.weights.hf_names import Path

Params = dict[str, Any]
Remat = Literal["none", "full"]


@dataclass(frozen=True)
class Form:
    """With adapters, they are what trains, and the weights stay as they are; then their matrices may be quantised."""

    config: ModelConfig
    compute_dtype: str = "float32"
    param_dtype: str = "float32"
    remat: Remat = "none"
    adapters: Adapters | None = None
    quantization: packed_matrix.Format | None = None

    @cached_property
    def weights(self) -> Weights:
        """All of them, in the format that they are stored in, in the order of their names."""
        found = parameters.decoder(self.config)
        beside = lora.beside(self.config, self.adapters, found)
        if self.quantization is not None:
            found = _quantised(found, self.quantization)
        stored = {path: one._replace(dtype=one.dtype or self.param_dtype) for path, one in (found | beside).items()}
        return dict(sorted(stored.items()))

    @property
    def trained_weights(self) -> Weights:
        """The part that training changes."""
        if self.adapters is None:
            return self.weights
        return {path: one for path, one in self.weights.items() if lora.is_adapter(path)}

    @property
    def frozen_weights(self) -> Weights:
        """The part that stays as it is."""
        if self.adapters is None:
            return {}
        return {path: one for path, one in self.weights.items() if not lora.is_adapter(path)}

    @property
    def decoding_tables(self) -> Weights:
        """What a sampler holds outside the layers: in the compute format, axes as it splits them."""
        return {path: self._decoding(path, 0) for path in self.weights if path[0] != "layers"}

    @property
    def decoding_layer(self) -> Weights:
        """What it holds of each layer."""
        return {path: self._decoding(path, 1) for path in self.weights if path[0] == "layers"}

    @cached_property
    def decoding_bytes(self) -> int:
        """All that a sampler holds."""
        of_layer, of_tables = (
            sum(one.bytes for one in part.values()) for part in (self.decoding_layer, self.decoding_tables)
        )
        return self.config.layers * of_layer + of_tables

    def _decoding(self, path: Path, stacked: int) -> Declared:
        one = self.weights[path]
        is_packed = path[-1] in packed_matrix.PARTS["nf4"]
        axes = parameters.whole_in_decoding(one.axes[stacked:])
        return Declared(one.shape[stacked:], axes, one.dtype if is_packed else self.compute_dtype)


def _quantised(weights: Weights, kind: packed_matrix.Format) -> Weights:
    found: Weights = {}
    for path, one in weights.items():
        if path[0] == "layers" and path[-1] in packed_matrix.MATRICES.get(path[1], ()):
            found |= {(*path, name): part for name, part in packed_matrix.parts(kind, one).items()}
        else:
            found[path] = one
    return found
