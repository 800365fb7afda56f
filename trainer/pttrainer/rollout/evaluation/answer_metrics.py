"""Greedy answers against gold ones: exact match, accuracy, macro F1.

All compare normalised texts: trimmed, white space within as one space, case folded. A classifying model is asked for
labels, and says more than the label now and then: its label is the text that it says, where that is one, or else the
only label that stands in it as whole words; none otherwise, which is wrong and nobody's false positive.

    exactMatch   share of answers that equal the gold answer
    accuracy     share of answers whose label is the gold one
    macroF1      mean over labels of 2·tp / (2·tp + fp + fn); a label that is neither gold nor said counts as 0

Labels are those of the job, or the gold answers that occur.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

METRICS = {"exactMatch": "exact_match", "accuracy": "accuracy", "macroF1": "macro_f1"}
"""Names in `spec.evaluation.answers`, and of the metrics."""


def measure(asked: Sequence[str], said: Sequence[str], gold: Sequence[str], labels: Sequence[str]) -> dict[str, float]:
    """The metrics that are asked for, over pairs of what was said and what is right (at least one)."""
    if not asked:
        return {}
    said, gold = [normalised(text) for text in said], [normalised(text) for text in gold]
    known = sorted({normalised(label) for label in labels} or set(gold))
    chosen = [label(text, known) for text in said]
    values = {
        "exactMatch": _share(said, gold),
        "accuracy": _share(chosen, gold),
        "macroF1": sum(_f1(name, chosen, gold) for name in known) / len(known),
    }
    return {METRICS[name]: values[name] for name in asked}


def normalised(text: str) -> str:
    """The text as it is compared."""
    return " ".join(text.split()).casefold()


def label(text: str, labels: Sequence[str]) -> str | None:
    """The label that a normalised text says."""
    if text in labels:
        return text
    # Longest first: what is said in "not spam" is that label, and not the "spam" within it.
    any_label = "|".join(re.escape(name) for name in sorted(labels, key=len, reverse=True))
    there = set(re.findall(rf"(?<!\w)(?:{any_label})(?!\w)", text))
    return there.pop() if len(there) == 1 else None


def _share(found: Sequence[str | None], gold: Sequence[str]) -> float:
    return sum(a == b for a, b in zip(found, gold, strict=True)) / len(gold)


def _f1(name: str, chosen: Sequence[str | None], gold: Sequence[str]) -> float:
    hits = sum(a == b == name for a, b in zip(chosen, gold, strict=True))
    counted = sum(text == name for text in chosen) + sum(text == name for text in gold)
    return 2 * hits / counted if counted else 0.0
