"""What `transformers` computes of Mistral 3 with images. Needs the extra `parity`."""

from typing import Any

import numpy as np
import torch
from PIL import Image
from tests.builders.peers.mistral_images import LONGEST, MEAN, MERGE, PATCH, STD
from tests.builders.peers.sized_image_reference import Inputs
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil


def processor() -> Any:
    """Their processor of pictures, with the size of patches that the whole processor gives it."""
    return PixtralImageProcessorPil(
        size={"longest_edge": LONGEST}, patch_size=PATCH * MERGE, image_mean=MEAN, image_std=STD
    )


def inputs(tokens: np.ndarray, pictures: list[Image.Image]) -> Inputs:
    """Of one example: ids, and pictures as their processor makes them."""
    ids = torch.tensor(tokens[None], dtype=torch.long)
    named: Inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return named | (dict(processor()(pictures, return_tensors="pt")) if pictures else {})
