"""What `transformers` computes of models whose images have as many tokens as their sizes make. Needs `parity`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tests.builders.peers.sized_images import Example

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

Inputs = dict[str, Any]
InputsOf = Callable[..., Inputs]
"""(tokens, pictures) -> what a family's model takes of one example."""


def load_reference(directory: Path) -> Any:
    """The model of a directory, in float32, by the plain implementation; no weight may be missing or left over."""
    model, report = transformers.AutoModelForImageTextToText.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True,
    )  # fmt: skip
    amiss = {problem: names for problem, names in report.items() if names}
    assert not amiss, amiss
    return model.eval()


@torch.no_grad()
def logits(model: Any, inputs_of: InputsOf, example: Example) -> np.ndarray:
    """Of one example, [T, V]."""
    return np.asarray(model(**inputs_of(*example)).logits[0].numpy())


@torch.no_grad()
def greedy(model: Any, inputs_of: InputsOf, example: Example, steps: int) -> np.ndarray:
    """The likeliest continuation, by `generate` with its cache; end tokens do not end it."""
    model.generation_config.eos_token_id = None
    config = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=steps, min_new_tokens=steps, eos_token_id=None, pad_token_id=0
    )
    out = model.generate(**inputs_of(*example), generation_config=config)
    return np.asarray(out[0, len(example[0]) :].numpy())
