"""Every family against numbers that `transformers` computed (`make references` wrote them, `make parity` is live)."""

from pathlib import Path

import numpy as np
import pytest
from tests.builders.peers.inference import forward, greedy, left_padded, load_model, packed, plain
from tests.builders.peers.models import CASES, LENGTH, NEW_TOKENS, SHORT, examples, write_checkpoint

REFERENCES = Path(__file__).parent / "references"
TOLERANCE = 1e-4
"""Largest difference of a logit, float32; their deviation is above 1. Not to be loosened."""


@pytest.mark.parametrize("name", CASES)
def test_logits_and_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    wanted = np.load(REFERENCES / f"{name}.npz")
    model, params = load_model(write_checkpoint(tmp_path, CASES[name]))
    whole, *short = examples(CASES[name])
    rows = [plain(whole, LENGTH), packed(short, LENGTH), *(left_padded(example, LENGTH) for example in short)]
    long_TV, packed_TV, *padded = forward(model, params, rows)
    assert np.abs(long_TV[wanted["positions"]] - wanted["long"]).max() <= TOLERANCE
    ends = np.cumsum(SHORT)
    for length, end, padded_TV in zip(SHORT, ends, padded, strict=True):
        last_TV = wanted[f"short_{length}"]
        assert np.abs(packed_TV[end - len(last_TV) : end] - last_TV).max() <= TOLERANCE
        assert np.abs(padded_TV[-len(last_TV) :] - last_TV).max() <= TOLERANCE
    continued = greedy(model, params, short, NEW_TOKENS)
    for length, tokens in zip(SHORT, continued, strict=True):
        np.testing.assert_array_equal(tokens, wanted[f"greedy_{length}"])


def test_there_is_a_reference_for_every_case_and_no_other() -> None:
    assert {file.stem for file in REFERENCES.glob("*.npz")} == set(CASES)
