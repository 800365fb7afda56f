"""The config of Pixtral's vision tower, in Mistral 3 and Ministral 3."""

from dataclasses import dataclass

from pttrainer.errors import ConfigError
from pttrainer.models.config.vision import ImagesOfAnySize


@dataclass(frozen=True)
class Pixtral(ImagesOfAnySize):
    """A vision tower that sees an image at its own size, with rotary positions in two directions (arXiv 2410.07073).

    image_size: pixels of the longer side at most. merge: patches of a side that become one token. theta: of the rotary
    positions. projector_activation, projector_bias: of the two layers that lead to the decoder; projector_eps: of the
    norm before them.
    """

    d_model: int
    d_ff: int
    layers: int
    heads: int
    image_size: int
    patch_size: int
    merge: int
    projector_eps: float
    theta: float = 10_000.0
    activation: str = "silu"
    projector_activation: str = "gelu"
    projector_bias: bool = False
    channels: int = 3

    def __post_init__(self) -> None:
        if self.d_model % (2 * self.heads):
            raise ConfigError(
                f"config.json vision_config num_attention_heads: {self.heads}: accepted: heads of an even size, so a "
                f"divisor of half of hidden_size ({self.d_model})"
            )

    @property
    def head_dim(self) -> int:
        """Return the elements of a head."""
        return self.d_model // self.heads
