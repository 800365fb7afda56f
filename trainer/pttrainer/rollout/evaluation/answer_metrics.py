"""Greedy answers against gold ones: exact match, accuracy, macro F1.

All compare normalised texts: trimmed, inner white space as one space, case folded. A classifying model should answer
with a label, and may add other text: its label is its text, if that is one, or else the only label that occurs in it as
whole words; none otherwise, which is wrong and a false positive of no label.

    exactMatch   share of answers that equal the gold answer
    accuracy     share of answers whose label is the gold one
    macroF1      mean over labels of 2·tp / (2·tp + fp + fn); a label that is neither gold nor answered counts as 0

Labels are those of the job, or the gold answers that occur.
"""

import re
from collections.abc import Sequence

METRICS = {"exactMatch": "exact_match", "accuracy": "accuracy", "macroF1": "macro_f1"}
"""Metric names by their name in `spec.evaluation.answers`."""


def measure(
    names: Sequence[str], answers: Sequence[str], gold: Sequence[str], labels: Sequence[str]
) -> dict[str, float]:
    """Return the metrics `names` over pairs of answer and gold answer (at least one)."""
    if not names:
        return {}
    answers, gold = [normalised(text) for text in answers], [normalised(text) for text in gold]
    all_labels = sorted({normalised(label) for label in labels} or set(gold))
    chosen = [label(text, all_labels) for text in answers]
    values = {
        "exactMatch": _share(answers, gold),
        "accuracy": _share(chosen, gold),
        "macroF1": sum(_f1(name, chosen, gold) for name in all_labels) / len(all_labels),
    }
    return {METRICS[name]: values[name] for name in names}


def normalised(text: str) -> str:
    """Return the text as it is compared."""
    return " ".join(text.split()).casefold()


def label(text: str, labels: Sequence[str]) -> str | None:
    """Return the label in a normalised text, if there is exactly one."""
    if text in labels:
        return text
    # Longest first: what is said in "not spam" is that label, and not the "spam" within it.
    any_label = "|".join(re.escape(name) for name in sorted(labels, key=len, reverse=True))
    matches = set(re.findall(rf"(?<!\w)(?:{any_label})(?!\w)", text))
    return matches.pop() if len(matches) == 1 else None


def _share(answers: Sequence[str | None], gold: Sequence[str]) -> float:
    return sum(a == b for a, b in zip(answers, gold, strict=True)) / len(gold)


def _f1(name: str, chosen: Sequence[str | None], gold: Sequence[str]) -> float:
    hits = sum(a == b == name for a, b in zip(chosen, gold, strict=True))
    counted = sum(text == name for text in chosen) + sum(text == name for text in gold)
    return 2 * hits / counted if counted else 0.0
