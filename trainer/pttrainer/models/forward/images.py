"""Images in packed rows: their embeddings in the places of their tokens, which may see all of their own image.

Letters: B rows, T tokens, M images of a row, J tokens of an image, D model, U sets of pixels, K layers.

Where images have sizes of their own, an image's tokens turn by time, row and column (M-RoPE), and text goes on behind
the longer side, not behind the last token. Only differences of positions count, so here everything before an image is
moved on by what it saves, in place of moving back what follows: after its last image a row has plain positions, and no
cache, page or later turn has to know of any.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from pttrainer.batch import Images
from pttrainer.data.tokenization.image_patches import grid
from pttrainer.models.attention.rope import Sections
from pttrainer.models.config import AnyVision, Llama4Vision, ModelConfig, QwenVision, Vision
from pttrainer.models.layers.decoder import Decoder
from pttrainer.models.shapes.structure import ModelStructure


class Embedded(NamedTuple):
    """The stream with images, and what the first K layers add to their tokens, if they do; zeros for text."""

    x_BTD: Array
    deep_KBTD: Array | None

    def behind(self, layer: int | Array, x_BTD: Array) -> Array:
        """Return the stream behind a layer."""
        if self.deep_KBTD is None:
            return x_BTD
        last = self.deep_KBTD.shape[0] - 1
        own_BTD = self.deep_KBTD[jnp.minimum(layer, last)]
        return x_BTD + jnp.where(layer <= last, own_BTD, jnp.zeros_like(own_BTD))


def inserted(model: ModelStructure, decoder: Decoder, x_BTD: Array, images: Images) -> Embedded:
    """Return the stream with the images' embeddings, each computed once for all rows that share it.

    Rows of the stream may be longer than the images' slots: what follows is text.
    """
    assert decoder.vision is not None
    assert model.config.vision is not None
    (B, T), (U, M) = x_BTD.shape[:2], images.pixels_BMSSC.shape[:2]
    pixels = images.pixels_BMSSC.reshape(U * M, *images.pixels_BMSSC.shape[2:])
    of_images = decoder.vision(_of_whole_tokens(model.config.vision, pixels), model.compute_dtype)
    J = of_images[0].shape[1]
    slots_BT = _padded_slots(images, T)
    image_BT, part_BT = _image_and_part(slots_BT, model.config.vision.tokens)
    places_BT = jnp.maximum(image_BT, 0) * J + part_BT

    def in_rows(of_images_IJD: Array) -> Array:
        of_rows = _of_rows(of_images_IJD.reshape(U, M * J, -1), images, B)
        return jnp.take_along_axis(of_rows, places_BT[..., None], axis=1).astype(x_BTD.dtype)

    own_BTD, *deep = map(in_rows, of_images)
    is_image_BT1 = (slots_BT > 0)[..., None]
    added = [jnp.where(is_image_BT1, each_BTD, jnp.zeros_like(each_BTD)) for each_BTD in deep]
    return Embedded(jnp.where(is_image_BT1, own_BTD, x_BTD), jnp.stack(added) if added else None)


def _of_whole_tokens(of: AnyVision, pixels: Array) -> Array:
    """Return patches [I, N, X] with so many more, empty ones, that N is of whole tokens; pixels as they are.

    A sampler pads patches to a power of two, which is no multiple of Gemma 4's 9 of a token.
    """
    if isinstance(of, (Vision, Llama4Vision)):
        return pixels
    return jnp.pad(pixels, ((0, 0), (0, -pixels.shape[1] % of.merge**2), (0, 0)))


def text_tokens(config: ModelConfig, tokens_BT: Array, images: Images | None) -> Array:
    """Return the tokens by which layers look up embeddings of their own: padding in the places of images."""
    if images is None:
        return tokens_BT
    padding = 0 if config.pad_id is None else config.pad_id
    return jnp.where(_padded_slots(images, tokens_BT.shape[1]) > 0, padding, tokens_BT)


def visible(config: ModelConfig, mask_BTT: Array, images: Images | None, *, is_local: bool) -> Array:
    """Return the mask in which tokens of an image also see those behind them in it, where such layers have it so."""
    if images is None or config.vision is None or not config.vision.sees_both_ways(is_local=is_local):
        return mask_BTT
    image_BT, _ = _image_and_part(images.slots_BT, config.vision.tokens)
    same_BTT = (image_BT[:, :, None] == image_BT[:, None, :]) & (image_BT >= 0)[:, :, None]
    return mask_BTT | same_BTT


def sections(config: ModelConfig, images: Images | None) -> Sections | None:
    """Return how many pairs turn by time, row and column; None for rows whose tokens have one position each."""
    return config.vision.sections if images is not None and isinstance(config.vision, QwenVision) else None


def positions(config: ModelConfig, positions_BT: Array, segment_ids_BT: Array, images: Images | None) -> Array:
    """Return what tokens turn by: their positions, or time, row and column [3, B, T] of them, where there are images.

    An image's tokens have the time of its first one, and its sides as rows and columns from there.
    """
    if images is None or not isinstance(config.vision, QwenVision):
        return positions_BT
    of = config.vision
    sides_UM2 = grid(images.pixels_BMSSC) // of.merge
    sides_BM2 = _of_rows(sides_UM2, images, positions_BT.shape[0])
    saved_BM = jnp.prod(sides_BM2, axis=-1) - jnp.max(sides_BM2, axis=-1)
    image_BT, part_BT = _image_and_part(images.slots_BT, of.tokens)
    moved_BT = _saved_behind(saved_BM, image_BT, part_BT, segment_ids_BT)
    own_BT = jnp.maximum(image_BT, 0)
    width_BT = jnp.maximum(jnp.take_along_axis(sides_BM2[..., 1], own_BT, axis=1), 1)
    first_BT = positions_BT - part_BT + moved_BT + jnp.take_along_axis(saved_BM, own_BT, axis=1)
    of_images = jnp.stack([first_BT, first_BT + part_BT // width_BT, first_BT + part_BT % width_BT])
    return jnp.where(image_BT >= 0, of_images, positions_BT + moved_BT)


def _saved_behind(saved_BM: Array, image_BT: Array, part_BT: Array, segment_ids_BT: Array) -> Array:
    """Return how many positions the images save that begin behind each token in its example."""
    is_first_BMT = (image_BT[:, None] == jnp.arange(saved_BM.shape[1])[:, None]) & (part_BT == 0)[:, None]
    first_BM = jnp.argmax(is_first_BMT, axis=-1)
    there_BM = jnp.where(is_first_BMT.any(axis=-1), jnp.take_along_axis(segment_ids_BT, first_BM, axis=1), 0)
    is_behind_BMT = first_BM[..., None] > jnp.arange(segment_ids_BT.shape[1])
    is_same_BMT = (there_BM[..., None] == segment_ids_BT[:, None]) & (there_BM > 0)[..., None]
    return jnp.sum(jnp.where(is_behind_BMT & is_same_BMT, saved_BM[..., None], 0), axis=1)


def _padded_slots(images: Images, length: int) -> Array:
    """Return the slots of rows that may go on behind the images'."""
    return jnp.pad(images.slots_BT, ((0, 0), (0, length - images.slots_BT.shape[1])))


def _of_rows(of_sets: Array, images: Images, rows: int) -> Array:
    """Return what sets of pixels have, for every row."""
    if images.sets_B is not None:
        return of_sets[images.sets_B]
    return of_sets if len(of_sets) == rows else jnp.repeat(of_sets, rows // len(of_sets), axis=0)


def _image_and_part(slots_BT: Array, tokens_each: int) -> tuple[Array, Array]:
    """Return each token's image, -1 for text, and its place in it."""
    return (slots_BT - 1) // tokens_each, jnp.where(slots_BT > 0, (slots_BT - 1) % tokens_each, 0)
