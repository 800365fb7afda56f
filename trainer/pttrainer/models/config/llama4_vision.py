"""The config of Llama 4's vision tower."""

from dataclasses import dataclass

from pttrainer.errors import ConfigError
from pttrainer.models.config.vision import ImagesOfAnySize

TYPICAL_TILES = 17
"""Of an image whose size is not known: 16, and one that shows it whole."""


@dataclass(frozen=True)
class Llama4Vision(ImagesOfAnySize):
    """A vision tower that sees tiles of an image, each by itself, with rotary positions of column and row.

    image_size: pixels of a tile's side. merge: patches of a side that become one token. adapter: the width of both
    layers behind the tower that make tokens of patches. theta: of the rotary positions.
    """

    d_model: int
    d_ff: int
    layers: int
    heads: int
    image_size: int
    patch_size: int
    merge: int
    adapter: int
    begin_id: int
    end_id: int
    theta: float = 10_000.0
    activation: str = "gelu"
    norm_eps: float = 1e-5
    channels: int = 3

    def __post_init__(self) -> None:
        if self.d_model % (4 * self.heads):
            raise ConfigError(
                f"config.json vision_config num_attention_heads: {self.heads}: accepted: a divisor of a quarter of "
                f"hidden_size ({self.d_model}), because half of a head's pairs turn by the column and half by the row"
            )
        if self.image_size % (self.patch_size * self.merge):
            raise ConfigError(
                f"config.json vision_config image_size: {self.image_size}: accepted: a multiple of the "
                f"{self.patch_size * self.merge} pixels of a token's side"
            )

    @property
    def patches_per_side(self) -> int:
        """Return how many patches a side of a tile has."""
        return self.image_size // self.patch_size

    @property
    def tile_tokens(self) -> int:
        """Return the tokens of a tile."""
        return (self.patches_per_side // self.merge) ** 2

    def tiles(self, row_tokens: int) -> int:
        """Return the tiles of an image in rows of so many tokens, of a typical one or of one that fills the row."""
        return max(1, min(row_tokens // self.tile_tokens, TYPICAL_TILES))

    def patches(self, row_tokens: int) -> int:
        """Return the patches of such an image, with the class token of each tile."""
        return self.tiles(row_tokens) * (self.patches_per_side**2 + 1)

    def patches_together(self, row_tokens: int) -> int:
        """Return how many of them see each other: those of a tile."""
        del row_tokens
        return self.patches_per_side**2 + 1

    def pixels_shape(self, row_tokens: int) -> tuple[int, ...]:
        """Return [T, S, S, C] of such an image: its tiles, each of S pixels a side."""
        return self.tiles(row_tokens), self.image_size, self.image_size, self.channels
