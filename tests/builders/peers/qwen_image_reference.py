"""What `transformers` computes of Qwen3-VL. Needs the extra `parity`."""

import numpy as np
import torch
from PIL import Image
from tests.builders.peers.qwen_images import FORMAT, FRAMES, PART, PATCH
from tests.builders.peers.sized_image_reference import Inputs


def inputs(tokens: np.ndarray, pictures: list[Image.Image]) -> Inputs:
    """Of one example: ids, kinds of tokens, and patches as their processor makes them."""
    ids = torch.tensor(tokens[None], dtype=torch.long)
    named: Inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if not pictures:
        return named
    arrays = [FORMAT.array(each) for each in pictures]
    grids = [[1, *map(int, array[:, :2].max(axis=0))] for array in arrays]
    patches = np.concatenate(arrays)[:, 2:].reshape(-1, 3, 1, PATCH, PATCH)
    whole = np.broadcast_to(patches, (len(patches), 3, FRAMES, PATCH, PATCH)).reshape(len(patches), -1)
    return named | {
        "pixel_values": torch.tensor(whole),
        "image_grid_thw": torch.tensor(grids),
        "mm_token_type_ids": (ids == PART).long(),
    }
