"""The queue of samples that have no row yet, prompt by prompt; prompts are computed some at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from pttrainer.rollout.engine import Prompt


class Part(NamedTuple):
    """Prompts that are computed together, and which samples of the rollout are theirs: first, …, end - 1."""

    prompts: list[Prompt]
    first: int
    end: int


def parts(prompts: Sequence[Prompt], samples: int, at_once: int) -> deque[Part]:
    """All prompts, in order, `at_once` at a time. The last part is filled up, so that all have one shape."""
    found: deque[Part] = deque()
    for start in range(0, len(prompts), at_once):
        chosen = list(prompts[start : start + at_once])
        filled = chosen + [chosen[-1]] * (at_once - len(chosen))
        found.append(Part(filled, start * samples, (start + len(chosen)) * samples))
    return found
