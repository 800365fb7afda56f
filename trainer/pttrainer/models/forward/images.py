"""Images in packed rows: their embeddings in the places of their tokens, which see all of their own image.

Letters: B rows, T tokens, M images of a row, J tokens of an image, D model.
"""

import jax.numpy as jnp
from jax import Array

from pttrainer.batch import Images
from pttrainer.models.layers.decoder import Decoder
from pttrainer.models.shapes.structure import ModelStructure


def inserted(model: ModelStructure, decoder: Decoder, x_BTD: Array, images: Images) -> Array:
    """Return the stream with the images' embeddings, each computed once for its row."""
    assert decoder.vision is not None
    B, M = images.pixels_BMSSC.shape[:2]
    of_images = decoder.vision(images.pixels_BMSSC.reshape(B * M, *images.pixels_BMSSC.shape[2:]), model.compute_dtype)
    of_rows = of_images.reshape(B, -1, of_images.shape[-1])
    own_BTD = jnp.take_along_axis(of_rows, jnp.maximum(images.slots_BT - 1, 0)[..., None], axis=1)
    return jnp.where((images.slots_BT > 0)[..., None], own_BTD.astype(x_BTD.dtype), x_BTD)


def visible(mask_BTT: Array, images: Images, tokens_each: int) -> Array:
    """Return the mask in which tokens of an image also see those behind them in it."""
    image_BT = jnp.where(images.slots_BT > 0, (images.slots_BT - 1) // tokens_each + 1, 0)
    same_BTT = (image_BT[:, :, None] == image_BT[:, None, :]) & (image_BT > 0)[:, :, None]
    return mask_BTT | same_BTT
