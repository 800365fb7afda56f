"""Whole texts to rows of which one number is computed: what a reward model reads.

The score of a text is read where transformers' sequence classification reads it: at its last token that is not the
padding token. A batch predicts the token after each; here that is a filler, so that every token of a text is read and
the mask is 1 at the last one alone.
"""

from collections.abc import Sequence

import numpy as np

from pttrainer.batch import Batch
from pttrainer.data.preferences.pairs import Pair, Pairs, answers_batch
from pttrainer.data.sft_examples import Example


def example(ids: Sequence[int] | np.ndarray, pad_id: int) -> Example:
    """Return a text as an example; padding tokens at its end are not read."""
    read = np.asarray(ids, np.int32)
    kept = max(int(np.max(np.flatnonzero(read != pad_id), initial=0)) + 1, 1)
    return Example(np.append(read[:kept], np.int32(pad_id)), np.arange(kept + 1) == kept)


def of_pairs(pairs: Pairs, pad_id: int) -> list[Pair]:
    """Return the pairs with whole texts in place of answers to be learned."""
    return [Pair(*(example(one.tokens, pad_id) for one in (pair.chosen, pair.rejected))) for pair in pairs.pairs]


def longest(pairs: Sequence[Pair]) -> int:
    """Return the number of tokens of the longest text."""
    return max(one.length for pair in pairs for one in (pair.chosen, pair.rejected))


def batch_of(pairs: Sequence[Pair | None], width: int) -> Batch:
    """Return 2P rows, all chosen, then all rejected; None fills up."""
    sides = [[None if pair is None else getattr(pair, side) for pair in pairs] for side in ("chosen", "rejected")]
    return answers_batch([*sides[0], *sides[1]], width)
