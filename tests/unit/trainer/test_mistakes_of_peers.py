"""Every mistake that was found in peers (docs/reference/algorithms.md) has a test here, and this table says which.

14 (text decoded and encoded again between turns) and 15 (whitening in GAE) belong to episodes of several turns and to
PPO, which are not here yet.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TRAINER = "tests/unit/trainer"

TESTS: dict[int, tuple[str, str]] = {
    1: (f"{TRAINER}/models/test_references.py", "test_logits_and_greedy_tokens_are_those_of_transformers"),
    2: (f"{TRAINER}/test_policy_loss.py", "test_k1_as_a_loss_would_have_no_gradient_which_is_why_it_is_not_here"),
    3: (f"{TRAINER}/test_advantages.py", "test_fractional_rewards_keep_their_fraction_whatever_their_type"),
    4: (f"{TRAINER}/test_grpo.py", "test_the_end_token_is_trained_also_where_padding_has_its_id"),
    5: (f"{TRAINER}/test_rollout.py", "test_every_end_token_ends_a_completion"),
    6: (f"{TRAINER}/test_policy_loss.py", "test_gspo_clips_where_epsilon_of_grpo_would_not"),
    7: (f"{TRAINER}/test_grpo.py", "test_the_overlong_penalty_counts_tokens_and_ends_at_minus_one"),
    8: (f"{TRAINER}/test_grpo.py", "test_no_reference_is_loaded_without_beta_and_one_with_it"),
    9: (f"{TRAINER}/test_step.py", "test_micro_batches_add_up_to_the_whole_batch"),
    10: (f"{TRAINER}/test_step.py", "test_packed_rows_are_the_same_step_as_one_example_per_row"),
    11: (f"{TRAINER}/test_rollout.py", "test_every_seed_step_prompt_number_and_sample_draws_anew"),
    12: (f"{TRAINER}/test_chat.py", "test_there_is_exactly_one_beginning_token"),
    13: (f"{TRAINER}/test_adapters.py", "test_the_sampler_uses_the_adapters"),
    16: (f"{TRAINER}/test_step.py", "test_every_weight_of_a_fresh_model_gets_a_gradient"),
    17: ("tests/unit/ptapi/test_wrong_manifests.py", "test_mistake_is_refused_with_field_value_and_what_is_accepted"),
    18: (f"{TRAINER}/test_optimizer.py", "test_the_decay_ends_at_the_last_step_of_the_run"),
    19: (f"{TRAINER}/test_rewards_runner.py", "test_a_reward_that_hangs_in_c_code_is_killed"),
    20: ("tests/integration/trainer/test_grpo.py",
         "test_a_run_that_is_killed_and_resumed_equals_one_that_is_not_to_the_bit"),
}  # fmt: skip
NOT_HERE_YET = {14, 15}


@pytest.mark.parametrize("number", sorted(TESTS))
def test_the_mistake_has_its_test(number: int) -> None:
    file, name = TESTS[number]
    assert f"\ndef {name}(" in (ROOT / file).read_text()


def test_no_mistake_of_the_list_is_left_out() -> None:
    text = (ROOT / "docs" / "reference" / "algorithms.md").read_text()
    listed = text.split("## Mistakes found in peers")[1]
    numbers = {int(found) for found in re.findall(r"^(\d+)\. ", listed, re.MULTILINE)}
    assert numbers == set(TESTS) | NOT_HERE_YET
