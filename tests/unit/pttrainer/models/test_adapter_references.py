"""Adapters against numbers that `peft` computed from our export (`make references` wrote them)."""

from pathlib import Path

import numpy as np
import pytest
from tests.builders.peers.adapters import REFERENCES, adapted
from tests.builders.peers.inference import forward, greedy, load_model, plain
from tests.builders.peers.models import CASES, LENGTH, examples, write_checkpoint

DIRECTORY = Path(__file__).parent / "references-adapters"
TOLERANCE = 1e-4
"""Largest difference of a logit, float32; their deviation is above 1. Not to be loosened."""


@pytest.mark.parametrize("name", REFERENCES)
def test_adapters_have_the_logits_of_peft_unmerged_and_merged(name: str, tmp_path: Path) -> None:
    wanted = np.load(DIRECTORY / f"{name}.npz")
    model, params = adapted(*load_model(write_checkpoint(tmp_path, CASES[name])), name)
    row = plain(examples(CASES[name])[0], LENGTH)
    (unmerged_TV,) = forward(model, params, [row])
    (merged_TV,) = forward(model.without_adapters, model.merged(params), [row])
    assert np.abs(unmerged_TV[wanted["positions"]] - wanted["long"]).max() <= TOLERANCE
    assert np.abs(merged_TV[wanted["positions"]] - wanted["long"]).max() <= TOLERANCE


def test_decoding_through_a_latent_cache_uses_the_adapters(tmp_path: Path) -> None:
    model, params = adapted(*load_model(write_checkpoint(tmp_path, CASES["deepseek-v3"])), "deepseek-v3")
    prompts = examples(CASES["deepseek-v3"])[1:2]
    merged = greedy(model.without_adapters, model.merged(params), prompts, 12)
    np.testing.assert_array_equal(greedy(model, params, prompts, 12), merged)


def test_there_is_a_reference_for_every_case_and_no_other_with_adapters() -> None:
    assert {file.stem for file in DIRECTORY.glob("*.npz")} == set(REFERENCES)
