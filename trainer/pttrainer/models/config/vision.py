"""The configs of vision towers."""

from dataclasses import dataclass
from math import isqrt

from pttrainer.data.tokenization.image_patches import PLACE
from pttrainer.errors import ConfigError


@dataclass(frozen=True)
class Vision:
    """A vision tower that sees patches of an image (SigLIP, arXiv 2303.15343), and what makes of them tokens.

    image_size, patch_size: pixels of a side. tokens: for an image, each the mean of a square of patches. begin_id,
    end_id: the tokens around them.
    """

    d_model: int
    d_ff: int
    layers: int
    heads: int
    image_size: int
    patch_size: int
    tokens: int
    begin_id: int
    end_id: int
    activation: str = "gelu_tanh"
    norm_eps: float = 1e-6
    channels: int = 3

    def __post_init__(self) -> None:
        if self.d_model % self.heads:
            raise ConfigError(
                f"config.json vision_config num_attention_heads: {self.heads}: accepted: a divisor of hidden_size "
                f"({self.d_model})"
            )
        if self.image_size % self.patch_size:
            raise ConfigError(
                f"config.json vision_config image_size: {self.image_size}: accepted: a multiple of patch_size "
                f"({self.patch_size})"
            )
        if self.tokens_per_side**2 != self.tokens or self.patches_per_side % self.tokens_per_side:
            raise ConfigError(
                f"config.json mm_tokens_per_image: {self.tokens}: accepted: the square of a divisor of "
                f"{self.patches_per_side}, the patches of a side"
            )

    def sees_both_ways(self, *, is_local: bool) -> bool:
        """Return True if the decoder's tokens of an image see those behind them in it, in layers of this kind."""
        del is_local
        return True

    def patches(self, row_tokens: int) -> int:
        """Return the patches of an image in rows of so many tokens: of every image as many."""
        del row_tokens
        return self.patches_per_side**2

    def patches_together(self, row_tokens: int) -> int:
        """Return how many of them see each other: all."""
        return self.patches(row_tokens)

    def pixels_shape(self, row_tokens: int) -> tuple[int, ...]:
        """Return [S, S, C] of an image in such rows."""
        del row_tokens
        return self.image_size, self.image_size, self.channels

    @property
    def patches_per_side(self) -> int:
        """Return how many patches a side of an image has."""
        return self.image_size // self.patch_size

    @property
    def tokens_per_side(self) -> int:
        """Return how many tokens a side of an image has."""
        return isqrt(self.tokens)


MOST_TOKENS = 2**16
"""Of an image of any size, so that a token's place in its row's images is a number that no padding changes."""
TYPICAL_TOKENS = 1024
"""Of an image whose size is not known, such as one of a million pixels."""


class ImagesOfAnySize:
    """What towers for images of any size have in common: an image is a list of patches, each with its place."""

    patch_size: int
    merge: int
    channels: int

    @property
    def tokens(self) -> int:
        """Return the most tokens of an image."""
        return MOST_TOKENS

    def sees_both_ways(self, *, is_local: bool) -> bool:
        """Return True if the decoder's tokens of an image see those behind them in it, in layers of this kind."""
        del is_local
        return False

    def patches(self, row_tokens: int) -> int:
        """Return the patches of an image in rows of so many tokens, of a typical one or of one that fills the row."""
        return min(row_tokens, TYPICAL_TOKENS) * self.merge**2

    def patches_together(self, row_tokens: int) -> int:
        """Return how many of them see each other: all."""
        return self.patches(row_tokens)

    def pixels_shape(self, row_tokens: int) -> tuple[int, ...]:
        """Return [N, X] of such an image: patches, each its row, its column and its numbers."""
        return self.patches(row_tokens), PLACE + self.channels * self.patch_size**2


@dataclass(frozen=True)
class QwenVision(ImagesOfAnySize):
    """A vision tower for images of any size (Qwen3-VL, arXiv 2511.21631; Qwen 3.5).

    model_type: of `config.json`. patch_size: pixels of a side; merge: patches of a side of a token's square. frames: of
    a patch; those of an image are alike. positions_per_side: of the learned ones, which are interpolated. deep_layers:
    those whose squares are projected, too, and added behind the decoder's first layers. sections: how many pairs of the
    decoder's heads turn by time, row and column.
    """

    model_type: str
    d_model: int
    d_ff: int
    layers: int
    heads: int
    patch_size: int
    merge: int
    frames: int
    positions_per_side: int
    begin_id: int
    end_id: int
    sections: tuple[int, int, int]
    deep_layers: tuple[int, ...] = ()
    activation: str = "gelu_tanh"
    norm_eps: float = 1e-6
    channels: int = 3

    def __post_init__(self) -> None:
        if self.d_model % (4 * self.heads):
            raise ConfigError(
                f"config.json vision_config num_heads: {self.heads}: accepted: a divisor of a quarter of hidden_size "
                f"({self.d_model})"
            )
        if list(self.deep_layers) != sorted({layer for layer in self.deep_layers if 0 <= layer < self.layers}):
            raise ConfigError(
                f"config.json vision_config deepstack_visual_indexes: {list(self.deep_layers)}: accepted: ascending "
                f"numbers of layers, 0 to {self.layers - 1}"
            )
