"""Memory of a vision tower in a train step: its activations, before the decoder begins, with one image for each row.

Letters: I images per device and pass, N patches of an image, D width, F feed-forward, L layers, b bytes of the compute
format.

    forward     b · I · N · (stream · D + mlp · F)  +  scores
    backward    where the tower is trained: twice as much beside the gradients, and the input of every layer,
                b · I · N · D · L, kept while the decoder computes; where its adapters are: once as much, as its own
                matrices have no gradients

Fitted to SigLIP's tower in Gemma 3, 8 images per device, beside a decoder too small to matter.
"""

from pttrainer.models.config import AnyVision
from pttrainer.models.shapes.parameters import ITEM_BYTES
from pttrainer.preflight.memory import tower_activations
from pttrainer.preflight.memory.resident import Buffer
from pttrainer.preflight.shapes.job_shapes import JobShapes


def one_layer(of: JobShapes) -> list[Buffer]:
    """Return what a layer of the tower takes, both passes where it is trained whole; nothing without a tower."""
    vision = of.config.vision
    if vision is None:
        return []
    passes, tokens = 2 if of.spec.training.vision == "all" else 1, of.spec.training.sequence_length
    activations = tower_activations.of_layer(vision, _images(of), tokens, ITEM_BYTES[of.structure.compute_dtype])
    scores = tower_activations.of_scores(vision, _images(of), tokens)
    shown = f"{_images(of)} images of {vision.patches(tokens)} patches"
    return [
        Buffer("activations of a layer of the vision tower", passes * activations, "train", shown),
        Buffer("attention scores of the vision tower", passes * scores, "train"),
    ]


def kept(of: JobShapes) -> list[Buffer]:
    """Return what the backward pass through the tower keeps."""
    vision = of.config.vision
    if vision is None or not is_trained(of):
        return []
    size = ITEM_BYTES[of.structure.compute_dtype] * _patches(of, vision) * vision.d_model * vision.layers
    return [Buffer("activations kept for the backward pass of the vision tower", size, "train")]


def is_trained(of: JobShapes) -> bool:
    """Return True if gradients flow through the tower."""
    return of.spec.training.vision in ("all", "lora")


def _images(of: JobShapes) -> int:
    """Return the images of a device and pass: one for each row."""
    return max(1, of.tokens_per_device // of.spec.training.sequence_length)


def _patches(of: JobShapes, vision: AnyVision) -> int:
    return _images(of) * vision.patches(of.spec.training.sequence_length)
