"""What `transformers` computes: the other side of every comparison. Needs the extra `parity`."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def load_reference(directory: Path) -> Any:
    """The model of a directory, in float32, by the plain implementation; no weight may be missing or left over."""
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    amiss = {problem: names for problem, names in report.items() if names}
    assert not amiss, amiss
    return model.eval()


@torch.no_grad()
def logits(model: Any, tokens: np.ndarray) -> np.ndarray:
    """Of one example, [T, V]."""
    return np.asarray(model(torch.tensor(tokens[None], dtype=torch.long)).logits[0].numpy())


@torch.no_grad()
def logits_left_padded(model: Any, tokens: np.ndarray, length: int) -> np.ndarray:
    """Of one example behind padding, as `transformers` computes it with an attention mask, [T, V]."""
    padding = length - len(tokens)
    ids = torch.tensor(np.concatenate([np.zeros(padding, np.int64), tokens])[None])
    mask = (torch.arange(length) >= padding).long()[None]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return np.asarray(model(ids, attention_mask=mask, position_ids=positions).logits[0, padding:].numpy())


@torch.no_grad()
def greedy(model: Any, tokens: np.ndarray, steps: int) -> np.ndarray:
    """The likeliest continuation, by `generate` with its cache; end tokens do not end it."""
    model.generation_config.eos_token_id = None  # what the call leaves unset comes from here
    config = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=steps, min_new_tokens=steps, eos_token_id=None, pad_token_id=0
    )
    ids = torch.tensor(tokens[None], dtype=torch.long)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return np.asarray(out[0, len(tokens) :].numpy())
