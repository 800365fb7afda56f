"""0 for a completion within its length, then linearly down to −1 at `maxTokens` (DAPO's soft overlong punishment).

reward = −clip((tokens − (max − buffer)) / buffer, 0, 1)       arXiv 2503.14476, equation 13

Counted in tokens, as the limit is, and never below −1. In a multi-turn episode only the model's own tokens count.
Weight it beside a correctness reward: alone it teaches silence.
"""


def reward(tokens: int, max_tokens: int, buffer_tokens: int) -> float:
    """Return a reward between −1 and 0."""
    over = max(tokens - (max_tokens - buffer_tokens), 0)
    return -min(over / buffer_tokens, 1.0)
