"""The config of Gemma 4's vision tower."""

from dataclasses import dataclass

from pttrainer.errors import ConfigError
from pttrainer.models.config.vision import ImagesOfAnySize


@dataclass(frozen=True)
class Gemma4Vision(ImagesOfAnySize):
    """A vision tower for images of any proportions, whose tokens are means of squares of patches.

    merge: patches of a side of such a square. positions: of a side, learned. usual_tokens: of an image, as preflight
    counts; the processor says how many there are. theta: of the rotary positions. clipped: inputs and results of its
    matrices are held between stored bounds. standardised: tokens are moved and scaled by stored numbers before they are
    projected. sees_image: whether tokens of an image see those behind them in it, in the decoder's local layers alone.
    """

    d_model: int
    d_ff: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    patch_size: int
    merge: int
    positions: int
    begin_id: int
    end_id: int
    usual_tokens: int = 280
    theta: float = 100.0
    clipped: bool = False
    standardised: bool = False
    sees_image: bool = False
    activation: str = "gelu_tanh"
    norm_eps: float = 1e-6
    channels: int = 3

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"config.json vision_config num_attention_heads: {self.heads}: accepted: a multiple of "
                f"num_key_value_heads ({self.kv_heads})"
            )
        if self.head_dim % 4:
            raise ConfigError(
                f"config.json vision_config head_dim: {self.head_dim}: accepted: a multiple of 4, because half of a "
                "head turns by the column and half by the row"
            )

    def sees_both_ways(self, *, is_local: bool) -> bool:
        """Return True if such layers' tokens of an image see those behind them in it."""
        return self.sees_image and is_local

    def patches(self, row_tokens: int) -> int:
        """Return the patches of an image in rows of so many tokens, of a usual one or of one that fills the row."""
        return min(row_tokens, self.usual_tokens) * self.merge**2
