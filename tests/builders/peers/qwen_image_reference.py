"""What `transformers` computes of Qwen3-VL. Needs the extra `parity`."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tests.builders.peers.qwen_images import FORMAT, FRAMES, PART, PATCH

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def load_reference(directory: Path) -> Any:
    """The model of a directory, in float32, by the plain implementation; no weight may be missing or left over."""
    model, report = transformers.AutoModelForImageTextToText.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True,
    )  # fmt: skip
    amiss = {problem: names for problem, names in report.items() if names}
    assert not amiss, amiss
    return model.eval()


def inputs(tokens: np.ndarray, pictures: list[Image.Image]) -> dict[str, Any]:
    """Of one example: ids, kinds of tokens, and patches as their processor makes them."""
    ids = torch.tensor(tokens[None], dtype=torch.long)
    named: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
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
