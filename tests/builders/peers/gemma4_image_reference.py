"""What `transformers` computes of Gemma 4 with images. Needs the extra `parity`."""

from typing import Any

import numpy as np
import torch
from PIL import Image
from tests.builders.peers.gemma4_images import MERGE, MOST, PART, PATCH
from tests.builders.peers.sized_image_reference import Inputs
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil


def processor() -> Any:
    """Their processor of pictures."""
    return Gemma4ImageProcessorPil(patch_size=PATCH, max_soft_tokens=MOST, pooling_kernel_size=MERGE)


def inputs(tokens: np.ndarray, pictures: list[Image.Image]) -> Inputs:
    """Of one example: ids, kinds of tokens, and pictures as their processor makes them."""
    ids = torch.tensor(tokens[None], dtype=torch.long)
    named: Inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == PART).long(),
    }
    theirs = dict(processor()(pictures, return_tensors="pt")) if pictures else {}
    return named | {key: theirs[key] for key in theirs if key in ("pixel_values", "image_position_ids")}
