"""What vLLM answers to a text with `prompt_logprobs`: K, read strictly, because half of it would be trained on.

choices[0].prompt_logprobs[] {id: {logprob}}    one per token; null for the first, which nothing predicts

An entry lists the K likeliest tokens in the token's place, and the token itself if it is none of them: that one more is
left out here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pttrainer.data.distillation.teacher_logprobs import TeacherLogprobs


class Unusable(Exception):
    """An answer that is none, and that will be the same again."""


def read(document: Any, tokens: int, places: Sequence[int], top_k: int, size: int) -> TeacherLogprobs:
    """Return the K likeliest tokens after each of these places of a text, the likeliest first.

    tokens: of the text; size: of the student's vocabulary. Raises Unusable.
    """
    try:
        entries = document["choices"][0]["prompt_logprobs"]
        if len(entries) != tokens:
            raise ValueError(f"log-probs of {len(entries)} tokens; there are {tokens}")
        rows = [_row(entries[place + 1], top_k) for place in places]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Unusable(
            f"no log-probs of a prompt: {type(error).__name__}: {error}; accepted: a server of vLLM's"
        ) from error
    ids_nK = np.array([[token for _, token in row] for row in rows], np.int32)
    logps_nK = np.array([[-negative for negative, _ in row] for row in rows], np.float32)
    if ids_nK.min() < 0 or ids_nK.max() >= size:
        raise Unusable(
            f"finds token {ids_nK.max()} likely, and the student's vocabulary has {size}; accepted: a teacher whose "
            "vocabulary is no larger; hint: a smaller topK, or teacher: {uri: …}, which leaves such tokens out"
        )
    if not (np.isfinite(logps_nK).all() and logps_nK.max() <= 1e-3):
        raise Unusable("log-probs are not all finite numbers up to 0")
    return TeacherLogprobs(ids_nK, logps_nK)


def _row(entry: Mapping[str, Mapping[str, Any]], top_k: int) -> list[tuple[float, int]]:
    """Return the K likeliest as (−log-prob, id), equal ones by their id."""
    row = sorted((-float(value["logprob"]), int(token)) for token, value in entry.items())
    if not top_k <= len(row) <= top_k + 1:
        raise ValueError(f"{len(row)} tokens in one place; accepted: {top_k}, and the text's own")
    return row[:top_k]
