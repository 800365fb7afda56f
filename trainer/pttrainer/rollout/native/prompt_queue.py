"""The queue of samples without a row, prompt by prompt; prompts are computed in batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from pttrainer.rollout.engine import Prompt


class PromptBatch(NamedTuple):
    """Prompts that are computed together, and their samples in the rollout: first, …, end - 1."""

    prompts: list[Prompt]
    first: int
    end: int


def prompt_batches(prompts: Sequence[Prompt], samples: int, at_once: int) -> deque[PromptBatch]:
    """Return all prompts in order, `at_once` at a time. The last batch is filled up, so all have one shape."""
    batches: deque[PromptBatch] = deque()
    for start in range(0, len(prompts), at_once):
        chosen = list(prompts[start : start + at_once])
        filled = chosen + [chosen[-1]] * (at_once - len(chosen))
        batches.append(PromptBatch(filled, start * samples, (start + len(chosen)) * samples))
    return batches
