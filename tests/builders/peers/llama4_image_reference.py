"""What `transformers` computes of Llama 4 with images. Needs the extra `parity`."""

from typing import Any

import numpy as np
import torch
from PIL import Image
from tests.builders.peers.llama4_images import FORMAT
from tests.builders.peers.llama4_pixels import PICTURES
from tests.builders.peers.sized_image_reference import Inputs
from tests.builders.pictures import drawn

from pttrainer.data.tokenization.tiles import TileFormat


def inputs(tokens: np.ndarray, pictures: list[Image.Image]) -> Inputs:
    """Of one example: ids, and the tiles of its pictures, one behind the other, as their processor makes them.

    The tiles are ours, because that processor needs torchvision (`tests/parity/test_image_processors.py`).
    """
    ids = torch.tensor(tokens[None], dtype=torch.long)
    named: Inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if not pictures:
        return named
    tiles_TSSC = np.concatenate([FORMAT.array(each) for each in pictures])
    return named | {"pixel_values": torch.tensor(tiles_TSSC.transpose(0, 3, 1, 2))}


def processor(format_: TileFormat) -> Any:
    """Their processor of pictures, which exists for torchvision alone."""
    from transformers.models.llama4.image_processing_llama4 import Llama4ImageProcessor

    return Llama4ImageProcessor(
        size={"height": format_.side, "width": format_.side}, max_patches=format_.most,
        resize_to_max_canvas=format_.is_filled, image_mean=list(format_.mean), image_std=list(format_.std),
    )  # fmt: skip


def tiles(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Their tiles of a picture of `llama4_pixels` [T, S, S, C], and its rows and columns."""
    size, format_ = PICTURES[name]
    made = processor(format_)([drawn(*size, seed=sum(size))], return_tensors="pt")
    return made["pixel_values"].float().numpy().transpose(0, 2, 3, 1), np.array(made["aspect_ratios"][0])
