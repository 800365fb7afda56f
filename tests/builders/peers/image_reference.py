"""What `transformers` computes of models with images. Needs the extra `parity`."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tests.builders.peers.image_models import PART

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def load_reference(directory: Path) -> Any:
    """The model of a directory, in float32, by the plain implementation; no weight may be missing or left over."""
    model, report = transformers.Gemma3ForConditionalGeneration.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    amiss = {problem: names for problem, names in report.items() if names}
    assert not amiss, amiss
    return model.eval()


@torch.no_grad()
def logits(model: Any, tokens: np.ndarray, pixels_ISSC: np.ndarray) -> np.ndarray:
    """Of one example, [T, V]."""
    ids = torch.tensor(tokens[None], dtype=torch.long)
    pixels = {"pixel_values": torch.tensor(pixels_ISSC.transpose(0, 3, 1, 2))} if len(pixels_ISSC) else {}
    return np.asarray(model(ids, token_type_ids=(ids == PART).long(), **pixels).logits[0].numpy())


@torch.no_grad()
def greedy(model: Any, tokens: np.ndarray, pixels_ISSC: np.ndarray, steps: int) -> np.ndarray:
    """The likeliest continuation, by `generate` with its cache; end tokens do not end it."""
    model.generation_config.eos_token_id = None
    config = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=steps, min_new_tokens=steps, eos_token_id=None, pad_token_id=0
    )
    ids = torch.tensor(tokens[None], dtype=torch.long)
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), token_type_ids=(ids == PART).long(), generation_config=config,
        pixel_values=torch.tensor(pixels_ISSC.transpose(0, 3, 1, 2)),
    )  # fmt: skip
    return np.asarray(out[0, len(tokens) :].numpy())
