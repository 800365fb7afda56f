"""Memory of a vision tower in a train step, before the decoder begins, with one image for each row.

Letters: I images per device and pass, N patches of an image, D width, L layers, X numbers of a patch, b bytes of the
compute format.

    frozen      one layer's pass forward (`tower_activations`)
    trained     both passes of a layer, adapters or all, beside the gradients and the input of every layer, b·I·N·D·L,
                kept while the decoder computes; the pixels, b·I·N·X, for the gradient of the first matrix, which has
                no adapters

Fitted to the towers of Gemma 3, Gemma 4 and Llama 4, each beside a decoder too small to matter. XLA's layouts and its
kernel are a TPU's; elsewhere the same terms are counted without the kernel.
"""

import math

from pttrainer.models.config import AnyVision
from pttrainer.models.shapes.parameters import ITEM_BYTES
from pttrainer.preflight.memory.resident import Buffer
from pttrainer.preflight.memory.tower_activations import TowerPass
from pttrainer.preflight.shapes.job_shapes import JobShapes, images_each


def one_layer(of: JobShapes) -> list[Buffer]:
    """Return what a layer of the tower takes, both passes where it or its adapters are trained."""
    vision = of.config.vision
    if vision is None:
        return []
    tokens = of.spec.training.sequence_length
    made = TowerPass(vision, _images(of), tokens, ITEM_BYTES[of.structure.compute_dtype], of.slice)
    taken = made.backward(has_adapters=of.spec.training.vision == "lora") if is_trained(of) else made.forward()
    shown = f"{_images(of)} images of {vision.patches(tokens)} patches"
    return [
        Buffer("activations of a layer of the vision tower", taken.stream, "train", shown),
        Buffer("attention scores of the vision tower", taken.scores, "train"),
    ]


def kept(of: JobShapes) -> list[Buffer]:
    """Return what the backward pass through the tower keeps."""
    vision = of.config.vision
    if vision is None or not is_trained(of):
        return []
    size = ITEM_BYTES[of.structure.compute_dtype] * _patches(of, vision) * vision.d_model * vision.layers
    if of.spec.training.vision == "all":
        pixels = math.prod(vision.pixels_shape(of.spec.training.sequence_length))
        size += ITEM_BYTES[of.structure.compute_dtype] * _images(of) * pixels
    return [Buffer("activations kept for the backward pass of the vision tower", size, "train")]


def is_trained(of: JobShapes) -> bool:
    """Return True if gradients flow through the tower."""
    return of.spec.training.vision in ("all", "lora")


def _images(of: JobShapes) -> int:
    """Return the images of a device and pass: one for each row, with its crops."""
    return max(1, of.tokens_per_device // of.spec.training.sequence_length) * images_each(of.spec)


def _patches(of: JobShapes, vision: AnyVision) -> int:
    return _images(of) * vision.patches(of.spec.training.sequence_length)
