"""Weights in column blocks, as `cpu_kernels` multiplies with them, and the computations of sampling that read them."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from pttrainer.models.attention.dot_product import Scoring, Slots, scaled
from pttrainer.models.attention.kv_cache import LayerKV
from pttrainer.models.quantization.packed_matrix import MATRICES, SLICED
from pttrainer.runtime.cpu_kernels import blocked_matmul, cached_attention, jit
from pttrainer.runtime.cpu_kernels.blocked_matmul import to_column_blocks
from pttrainer.runtime.cpu_kernels.register_tile import RegisterTile


@dataclass(frozen=True)
class CpuKernels:
    """The kernels for one register tile."""

    tile: RegisterTile

    def layer_weights(self, layer: dict[str, Any]) -> dict[str, Any]:
        """Return a layer's weights with the matrices that `layers.project` multiplies with in column blocks."""

        def one(matrix: Any) -> Any:
            is_fit = isinstance(matrix, Array) and matrix.ndim == 2 and matrix.dtype == "float32"
            return self._blocks(matrix) if is_fit and matrix.shape[1] % self.tile.width == 0 else matrix

        changed = {
            part: {
                **layer[part],
                **{name: one(layer[part][name]) for name in names if name in layer[part] and name not in SLICED},
            }
            for part, names in MATRICES.items()
            if part in layer
        }
        return {**layer, **changed}

    def head_blocks(self, head_VD: Array) -> Array | None:
        """Return the head in column blocks; None if it is not float32."""
        return self._blocks(head_VD.T) if head_VD.dtype == "float32" else None

    def product(self, x_MK: Array, blocks_SKW: Array) -> Array:
        """Return x · w [M, S · W], float32."""
        return blocked_matmul.product(x_MK, blocks_SKW, jit.target(blocked_matmul.NAME, self.tile))

    def can_attend(self, q_BTNH: Array, own: Slots, prompt: Slots | None, scoring: Scoring) -> bool:
        """Return True if `attend` applies: one token per row, plain float32 scores, whole column blocks."""
        if q_BTNH.shape[1] > 1 or q_BTNH.dtype != jnp.float32:
            return False
        if scoring.softcap is not None or scoring.sinks_N is not None:
            return False
        slots = (own[1].shape[2], 0 if prompt is None else prompt[1].shape[2])
        return cached_attention.fits(q_BTNH.shape[3], slots, self.tile)

    def attend(self, q_BTNH: Array, own: Slots, prompt: Slots | None, scoring: Scoring) -> Array:
        """Attend like `attend_cached` or, with a prompt, `attend_shared`."""
        B, T, N, H = q_BTNH.shape
        (keys, values), own_mask_BTS = own
        no_prompt = LayerKV(keys[..., :0], values[:, :, :0]), own_mask_BTS[..., :0]
        (prompt_keys, prompt_values), prompt_mask_BTS = prompt or no_prompt
        q_BKRH = scaled(q_BTNH, scoring).reshape(B, keys.shape[1], -1, H)
        cached = (keys, values, own_mask_BTS[:, 0]), (prompt_keys, prompt_values, prompt_mask_BTS[:, 0])
        target = jit.target(cached_attention.NAME, self.tile)
        return cached_attention.attend(q_BKRH, *cached, target).reshape(B, T, N, H)

    def _blocks(self, matrix_KN: Array) -> Array:
        return to_column_blocks(matrix_KN, self.tile.width)
