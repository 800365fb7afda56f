"""What `transformers` computes of Mistral 3 with images. Needs the extra `parity`."""

from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tests.builders.peers.mistral_images import LONGEST, MEAN, MERGE, PATCH, STD
from tests.builders.peers.qwen_image_reference import load_reference as load_reference  # the same for any model
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil


def processor() -> Any:
    """Their processor of pictures, with the size of patches that the whole processor gives it."""
    return PixtralImageProcessorPil(
        size={"longest_edge": LONGEST}, patch_size=PATCH * MERGE, image_mean=MEAN, image_std=STD
    )


def inputs(tokens: np.ndarray, pictures: list[Image.Image]) -> dict[str, Any]:
    """Of one example: ids, and pictures as their processor makes them."""
    ids = torch.tensor(tokens[None], dtype=torch.long)
    named: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return named | (dict(processor()(pictures, return_tensors="pt")) if pictures else {})


@torch.no_grad()
def logits(model: Any, tokens: np.ndarray, pictures: list[Image.Image]) -> np.ndarray:
    """Of one example, [T, V]."""
    return np.asarray(model(**inputs(tokens, pictures)).logits[0].numpy())


@torch.no_grad()
def greedy(model: Any, tokens: np.ndarray, pictures: list[Image.Image], steps: int) -> np.ndarray:
    """The likeliest continuation, by `generate` with its cache; end tokens do not end it."""
    model.generation_config.eos_token_id = None
    config = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=steps, min_new_tokens=steps, eos_token_id=None, pad_token_id=0
    )
    out = model.generate(**inputs(tokens, pictures), generation_config=config)
    return np.asarray(out[0, len(tokens) :].numpy())
