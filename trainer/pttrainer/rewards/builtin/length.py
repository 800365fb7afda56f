"""0 for a completion within its length, then linearly down to −1 at `maxTokens` (DAPO's soft overlong punishment).

    reward = −clip((tokens − (max − buffer)) / buffer, 0, 1)       arXiv 2503.14476, equation 13

Counted in tokens, as the limit is, and never below −1. Where an environment answers in between, only the tokens that
the model said count. Give it a weight beside a reward for being right: alone it teaches silence.
"""

from __future__ import annotations


def reward(tokens: int, max_tokens: int, buffer_tokens: int) -> float:
    """Between −1 and 0."""
    over = max(tokens - (max_tokens - buffer_tokens), 0)
    return -min(over / buffer_tokens, 1.0)
