"""Matrices in MXFP4, as gpt-oss is released: 4-bit floats, with a power of two for each 32 of them.

Letters: E experts, I inputs, O outputs, N blocks of inputs. Two numbers share a byte, the first in its lower half. The
format is OCP's Microscaling Formats (MX) 1.0, the layout in files that of transformers
(`src/transformers/integrations/mxfp4.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import ml_dtypes
import numpy as np

from pttrainer.errors import ConfigError
from pttrainer.models.weights.safetensors_file import Tensor

BLOCKS, SCALES = "_blocks", "_scales"
"""Suffixes of the two tensors that stand for one."""
BLOCK_BYTES = 16

_VALUES = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
_PAIRS = np.stack([np.tile(_VALUES, 16), np.repeat(_VALUES, 16)], axis=-1)
"""The two numbers of each byte."""


@dataclass(frozen=True)
class Mxfp4Tensor:
    """A tensor [E, I, O] that is stored as blocks [E, O, N, 16] and scales [E, O, N]; exact in float32."""

    blocks: Tensor
    scales: Tensor
    dtype: ClassVar[np.dtype] = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return [E, I, O]."""
        experts, outputs, blocks, _ = self.blocks.shape
        return experts, blocks * 2 * BLOCK_BYTES, outputs

    def rows(self, first: int, last: int) -> np.ndarray:
        """Return the matrices of experts [first:last]."""
        scales_EON = self.scales.rows(first, last).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
        numbers: np.ndarray = _PAIRS[self.blocks.rows(first, last)].reshape(*scales_EON.shape, 2 * BLOCK_BYTES)
        numbers *= scales_EON[..., None]
        return numbers.reshape(*scales_EON.shape[:2], -1).swapaxes(1, 2)


def joined(tensors: Mapping[str, Tensor], display_name: str) -> dict[str, Tensor | Mxfp4Tensor]:
    """Return the tensors by name, each pair of blocks and scales as the one that they stand for."""
    named: dict[str, Tensor | Mxfp4Tensor] = dict(tensors)
    for name in [name for name, tensor in tensors.items() if name.endswith(BLOCKS) and tensor.dtype == np.uint8]:
        of = name.removesuffix(BLOCKS)
        blocks, scales = tensors[name], tensors.get(of + SCALES)
        if scales is None or blocks.shape != (*scales.shape, BLOCK_BYTES) or len(scales.shape) != 3:
            there = "none" if scales is None else list(scales.shape)
            raise ConfigError(
                f"{display_name}: {name}: 4-bit floats {list(blocks.shape)} need {of}{SCALES}, a byte for each block "
                f"of {2 * BLOCK_BYTES}; there is {there}; hint: copy the files again"
            )
        del named[name], named[of + SCALES]
        named[of] = Mxfp4Tensor(blocks, scales)
    return named
