"""Memory of embedding, head and logits in a train step."""

import math

from pttrainer.losses.loss_traits import by_token
from pttrainer.models.shapes.parameters import ITEM_BYTES, LAYER_EMBEDDINGS
from pttrainer.preflight.memory import fitted
from pttrainer.preflight.memory.resident import Buffer
from pttrainer.preflight.shapes.job_shapes import JobShapes


def loss(of: JobShapes, kept: Buffer) -> list[Buffer]:
    """Return the buffers of the loss with a trained head; a reward model scores without one."""
    config = of.config
    if of.spec.algorithm.reward is not None:
        return [kept, *_layer_embeddings(of)]
    each = fitted.TIED_HEAD if config.tied_head else fitted.HEAD
    if of.has_micro_batches and not config.tied_head:
        each += fitted.SECOND_HEAD
    head = each * config.vocab_size * config.d_model / of.axis("tensor")
    # Losses of whole rows (`by_token` false) go another way: a chunk's logits are made again in the backward pass.
    is_lean = config.tied_head and by_token(of.spec.algorithm)
    return [
        kept,
        Buffer("head, gathered, and its gradient", int(head), "train"),
        _logits(of, fitted.TIED_LOGITS if is_lean else fitted.LOGITS),
    ]


def _layer_embeddings(of: JobShapes) -> list[Buffer]:
    """Return a device's part of the table of embeddings per layer as it is computed with, and its gradient."""
    held = [*of.arguments.params, *of.arguments.frozen]
    numbers = sum(math.prod(share.shape) for path, share in held if path == (LAYER_EMBEDDINGS, "table"))
    structure = of.structure
    computed = ITEM_BYTES[structure.compute_dtype] if structure.param_dtype != structure.compute_dtype else 0
    gradient = 0 if structure.adapters else ITEM_BYTES["float32"]
    size = (computed + gradient) * numbers
    return [Buffer("embeddings per layer, and their gradient", size, "train")] if size else []


def frozen_head(of: JobShapes, kept: Buffer) -> tuple[list[list[Buffer]], list[Buffer]]:
    """Return the gathered embedding and head, the loss, and what stays of them through all micro-batches."""
    config, logits = of.config, _logits(of, fitted.LOGITS)
    numbers = config.vocab_size * config.d_model // of.axis("tensor")
    stored, computed = (numbers * ITEM_BYTES[dtype] for dtype in (of.structure.param_dtype, of.structure.compute_dtype))
    head = Buffer("head, gathered", computed, "train")
    both = Buffer("embedding and head, gathered", computed * (1 if config.tied_head else 2), "train")
    if stored == computed:
        stays = of.has_micro_batches and not of.has_explicit_collectives
        return _unconverted_head(of, kept, head), [both] if stays else []
    # One after the other, so that there is one at a time in the format that it is stored in.
    gathered = [Buffer("embedding or head, gathered as stored", stored, "train"), *_layer_embeddings(of)]
    here, stay = ([], [both]) if of.has_micro_batches else ([head], [])
    if not by_token(of.spec.algorithm):
        if of.has_micro_batches and not config.tied_head:  # both are converted before the layers
            return [gathered, [kept, logits]], stay
        is_whole = of.structure.quantization is None and not of.has_micro_batches
        if of.has_explicit_collectives and is_whole:  # logits are made behind the conversion
            return [[kept, *gathered, *here], [kept, *here, logits]], stay
        return [[kept, *gathered, *here, logits]], stay
    is_early = (config.tied_head and not of.has_explicit_collectives) or of.has_micro_batches
    return [[*([] if is_early else [kept]), *gathered, *here], [kept, *here, logits]], stay


def _unconverted_head(of: JobShapes, kept: Buffer, head: Buffer) -> list[list[Buffer]]:
    """Return the moments of the loss with a frozen head that is stored as it is computed with."""
    if by_token(of.spec.algorithm):
        is_there_twice = of.config.tied_head and of.slice.generation == "v6e"
        again = int(fitted.FROZEN_TABLE * head.bytes) if is_there_twice else 0
        table = [Buffer("embedding, beside the head", again, "train")] if again else []
        return [[kept, *_layer_embeddings(of), head, _logits(of, fitted.LOGITS), *table]]
    # The compiler makes the head's gradient, although nothing reads it.
    bytes_each = ITEM_BYTES[of.structure.compute_dtype]
    gradient = Buffer("gradient of the head", 4 * head.bytes // bytes_each, "train")
    return [[kept, head, _logits(of, fitted.LOGITS)], [kept, head, gradient, _logits(of, bytes_each)]]


def _logits(of: JobShapes, each: float) -> Buffer:
    tokens, words = of.head_tokens_per_device, of.config.vocab_size // of.axis("tensor")
    return Buffer("logits of a chunk", int(each * tokens * words), "train", f"[{tokens}, {words}]")


def guidance(of: JobShapes) -> list[Buffer]:
    """Return the buffers while predictions are compared.

    Both heads, the student's in its stored and its compute format; if it is trained, its gradient so far and that
    of a chunk, as the devices sum it and as it is added.
    """
    if of.teacher is None:
        return []
    teacher, words = of.teacher.config.d_model, of.config.vocab_size // of.axis("tensor")
    each = (
        ITEM_BYTES[of.structure.param_dtype] * (1 if of.structure.adapters else 4)
        + ITEM_BYTES[of.structure.compute_dtype]
    )
    return [
        Buffer("teacher's hidden states and head", 2 * teacher * (of.tokens_per_device + words), "train"),
        Buffer("student's head, and its gradients", each * of.config.d_model * words, "train"),
        Buffer("logits of a chunk, of both", int(2 * fitted.LOGITS * of.head_tokens_per_device * words), "train"),
    ]
