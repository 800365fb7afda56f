"""Bytes of a layer of the vision tower, in a train step and in a rollout's prompts; images stay on their devices.

Letters: I images per device and pass, N patches of an image, D width, F feed-forward, H heads, n patches that see each
other, S scores that exist at once: I·N/n · H · n for each of as many queries as are scored together; b bytes of the
compute format.

    attention   5 · b·I·N·D + 4 · S         the stream, queries, keys, values and what it gives; scores in float32.
                                            Where patches pad an image: the mask, I·N·n; on v6e, if I > 1, scores once
                                            more, as masked
    in kernel   b·I·N·(D + 4 · 128·H)       on a TPU, if all patches see each other, n fills lanes and I > 1: the
                                            compiler has a kernel that keeps no scores, and heads lie in lanes
    MLP         b·I·N·(2 · D + F)           2 · F where it is gated
    backward    b·I·N·(13 · D + F) + 6 · S  scores, and their gradients in the compute format, or as masked, 8 · S; the
                                            mask twice. No F where the MLP is gated, as its part is done before; 2 · F
                                            with adapters, as their gradients need what goes into `down`, too. Where
                                            heads are normed 12 · D more: queries, keys and values in float32, before
                                            and after

A pass forward is the larger of attention, in the kernel or not, and MLP.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from ptapi.accelerators import Slice
from pttrainer.models.config import AnyVision, Gemma4Vision, Pixtral, QwenVision
from pttrainer.models.config.attention import queries_at_once
from pttrainer.preflight.memory import fitted
from pttrainer.runtime.tpu_tiles import LANES, filled_up

FLOAT32 = 4
PADDED = (QwenVision, Pixtral, Gemma4Vision)
"""Towers for images of any size, whose patches do not see those that pad them."""
GATED = (Pixtral, Gemma4Vision)
NORMED_HEADS = (Gemma4Vision,)
MASKS_APART = ("v6e",)
"""Generations whose compiler makes scores, and then masked ones; v5e and v5p have both in one."""


class Activations(NamedTuple):
    """Bytes of a layer's activations and of its attention's scores."""

    stream: int
    scores: int


@dataclass(frozen=True)
class TowerPass:
    """The images of a device and pass. row_tokens: of the rows that they stand in."""

    vision: AnyVision
    images: int
    row_tokens: int
    number_bytes: int
    on: Slice

    def forward(self) -> Activations:
        """Return what a pass forward takes."""
        mlp = self._stream(2 * self.vision.d_model + self.vision.d_ff * (1 + isinstance(self.vision, GATED)))
        if self._has_kernel:
            in_lanes = self.vision.heads * filled_up(math.ceil(self.vision.d_model / self.vision.heads))
            return Activations(max(mlp, self._stream(self.vision.d_model + 4 * in_lanes)), 0)
        attention, scores = self._stream(fitted.TOWER_FORWARD * self.vision.d_model), FLOAT32 * self._scores
        if self._is_padded:
            attention, scores = attention + self._mask, scores * self._times_masked
        return Activations(max(attention, mlp - scores), scores)

    def backward(self, *, has_adapters: bool) -> Activations:
        """Return what both passes take."""
        numbers = fitted.TOWER_BACKWARD * self.vision.d_model
        if isinstance(self.vision, NORMED_HEADS):
            numbers += fitted.TOWER_NORMED_HEADS * self.vision.d_model
        if not isinstance(self.vision, GATED):
            numbers += self.vision.d_ff * (1 + has_adapters)
        stream = self._stream(numbers)
        if not self._is_padded:
            return Activations(stream, (FLOAT32 + self.number_bytes) * self._scores)
        each = max(FLOAT32 + self.number_bytes, self._times_masked * FLOAT32)
        return Activations(stream + 2 * self._mask, each * self._scores)

    @property
    def _has_kernel(self) -> bool:
        is_plain = not self._is_padded and self._together % LANES == 0
        return self.on.platform == "tpu" and is_plain and self.images > 1

    @property
    def _is_padded(self) -> bool:
        return isinstance(self.vision, PADDED)

    @property
    def _times_masked(self) -> int:
        return 1 + (self.on.generation in MASKS_APART and self.images > 1)

    @property
    def _patches(self) -> int:
        return self.images * self.vision.patches(self.row_tokens)

    @property
    def _together(self) -> int:
        return self.vision.patches_together(self.row_tokens)

    @property
    def _mask(self) -> int:
        """Return the bytes of which patches see which."""
        return self._patches * self._together

    @property
    def _scores(self) -> int:
        """Return how many scores there are of as many queries as are scored at once, in whole lanes."""
        rows = self._patches // self._together * self.vision.heads
        return rows * queries_at_once(self._together, rows * self._together) * filled_up(self._together)

    def _stream(self, numbers: float) -> int:
        """Return the bytes of so many numbers for each patch."""
        return int(self.number_bytes * self._patches * numbers)
