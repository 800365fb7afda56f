"""The config of a vision tower."""

from dataclasses import dataclass
from math import isqrt

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

    @property
    def patches_per_side(self) -> int:
        """Return how many patches a side of an image has."""
        return self.image_size // self.patch_size

    @property
    def tokens_per_side(self) -> int:
        """Return how many tokens a side of an image has."""
        return isqrt(self.tokens)
