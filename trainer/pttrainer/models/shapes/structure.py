"""The structure of a model, which decides its memory and time: sizes, formats, recomputation, adapters.

`Model` is a structure that computes. Preflight's formula asks this module: the weights as plain data (`parameters`),
the trained ones, and those that a sampler holds. No jax, no weights.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from pttrainer.models.config import ModelConfig
from pttrainer.models.lora import adapters as lora
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.quantization import packed_matrix
from pttrainer.models.shapes import parameters
from pttrainer.models.shapes.parameters import ParamSpec, Weights
from pttrainer.models.vision.parameters import tower
from pttrainer.models.weights.hf_names import Path, is_of_layer

Params = dict[str, Any]
Remat = Literal[
    "none", "full", "save-context", "save-qkv-context", "offload-qkv", "offload-qkv-context", "offload-input",
    "offload-input-context",
]  # fmt: skip
Part = Literal["input", "qkv", "context"]
"""Of a layer's activations: the stream that it reads; queries, keys and values as attention reads them; its output."""


class Kept(NamedTuple):
    """The parts of a layer that stay for the backward pass, in a chip's memory and in its host's.

    The input stays in the chip's unless it is in the host's.
    """

    device: tuple[Part, ...] = ()
    host: tuple[Part, ...] = ()


KEPT: dict[Remat, Kept] = {
    "full": Kept(),
    "save-context": Kept(("context",)),
    "save-qkv-context": Kept(("qkv", "context")),
    "offload-qkv": Kept(("context",), ("qkv",)),
    "offload-qkv-context": Kept((), ("qkv", "context")),
    "offload-input": Kept((), ("input",)),
    "offload-input-context": Kept((), ("input", "context")),
}
"""Of the policies that name what stays; `none` keeps every product of weights."""


def with_part(params: Params, key: str, part: Params | None) -> Params:
    """Return the model's weights together with those of something beside it, if there is any."""
    return params if part is None else {**params, key: part}


def split_part(params: Params, key: str) -> tuple[Params, Params | None]:
    """Split what `with_part` returned."""
    if key not in params:
        return params, None
    return {name: one for name, one in params.items() if name != key}, params[key]


@dataclass(frozen=True)
class ModelStructure:
    """With adapters, only they are trained, and the frozen weights may be quantised.

    length: most tokens of the job's sequences, of which `config` is the config; None where nothing says.
    exported_dtype: of weights into which adapters are merged; None for that in which the frozen ones are kept.
    """

    config: ModelConfig
    compute_dtype: str = "float32"
    param_dtype: str = "float32"
    remat: Remat = "none"
    adapters: Adapters | None = None
    quantization: packed_matrix.Format | None = None
    length: int | None = None
    exported_dtype: str | None = None

    @cached_property
    def weights(self) -> Weights:
        """Return the specs of all weights, in their storage format, in the order of their names."""
        params = parameters.decoder(self.config) | tower(self.config)
        adapter_params = lora.adapter_params(self.config, self.adapters, params)
        if self.quantization is not None:
            params = _quantised(params, self.quantization)
        stored = {
            path: one._replace(dtype=one.dtype or self.param_dtype) for path, one in (params | adapter_params).items()
        }
        return dict(sorted(stored.items()))

    @property
    def trained_weights(self) -> Weights:
        """Return the trained part."""
        if self.adapters is None:
            return self.weights
        return {path: one for path, one in self.weights.items() if lora.is_adapter(path)}

    @property
    def frozen_weights(self) -> Weights:
        """Return the frozen part."""
        if self.adapters is None:
            return {}
        return {path: one for path, one in self.weights.items() if not lora.is_adapter(path)}

    @property
    def sums_embedding(self) -> bool:
        """Return True if the head is the embedding, and trained."""
        return self.config.tied_head and self.adapters is None

    @property
    def decoding_tables(self) -> Weights:
        """Return a sampler's weights outside the layers: in the compute format, with the axes it splits."""
        return {path: self._decoding(path, 0) for path in self.weights if not is_of_layer(path)}

    @property
    def decoding_layers(self) -> list[tuple[int, Weights]]:
        """Return a sampler's weights of a layer of each group, with the number of its layers."""
        return [
            (
                group.config.layers,
                {path: self._decoding(path, 1) for path in self.weights if path[0] == group.name},
            )
            for group in self.config.groups
        ]

    @cached_property
    def decoding_bytes(self) -> int:
        """Return the bytes of all weights of a sampler."""
        parts = [*self.decoding_layers, (1, self.decoding_tables)]
        return sum(count * one.bytes for count, part in parts for one in part.values())

    def _decoding(self, path: Path, stacked: int) -> ParamSpec:
        one = self.weights[path]
        keeps_format = path[-1] in packed_matrix.PARTS["nf4"] or path[-1] == parameters.CORRECTION
        axes = parameters.decoding_axes(one.axes[stacked:], is_quantised=self.quantization is not None)
        return ParamSpec(one.shape[stacked:], axes, one.dtype if keeps_format else self.compute_dtype)


def _quantised(weights: Weights, kind: packed_matrix.Format) -> Weights:
    params: Weights = {}
    for path, one in weights.items():
        # Three words: matrices of a layer's part itself, and not those of an indexer inside it.
        if is_of_layer(path) and len(path) == 3 and path[2] in packed_matrix.MATRICES.get(path[1], ()):
            params |= {(*path, name): part for name, part in packed_matrix.parts(kind, one).items()}
        else:
            params[path] = one
    return params
