"""Loss spikes: reported once, with what it takes to judge them, and never on runs that are only noisy.

`curves/` holds losses of real runs of `random://tiny` on mixed text (rows of 2 to 60 words, and of digits): batches of
1, 2 and 16 rows, 40 rows learned by heart, and one at a hundred times the learning rate, which does jump.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.builders.trainer import specs

from pttrainer.training.loss_spikes import LEAST, SILENCE, LossSpikes, of_job

CURVES = Path(__file__).parent / "curves"


def reports(losses: list[float], norm: float = 3.0) -> dict[int, str]:
    """Lines by step."""
    spikes = LossSpikes(max_grad_norm=1.0)
    values = ({"loss": loss, "grad_norm": norm, "learning_rate": 2e-5} for loss in losses)
    warnings = {step: spikes.report(step, of_step) for step, of_step in enumerate(values, start=1)}
    return {step: line for step, line in warnings.items() if line}


def curve(name: str) -> list[float]:
    return [float(x) for x in json.loads((CURVES / f"{name}.json").read_text())]


@pytest.mark.parametrize("name", ["one-row", "two-rows", "batch-16", "learned-by-heart"])
def test_a_noisy_run_raises_no_alarm(name: str) -> None:
    assert reports(curve(name)) == {}


@pytest.mark.parametrize("name", ["one-row", "two-rows", "batch-16"])
@pytest.mark.parametrize("at", [100, 250])
def test_a_spike_in_a_real_curve_is_found_at_its_step(name: str, at: int) -> None:
    losses = curve(name)
    losses[at - 1] += 12.0
    assert list(reports(losses)) == [at]


def test_a_run_that_is_far_too_fast_is_told_so() -> None:
    ((step, line),) = reports(curve("far-too-fast")).items()
    assert step == 92
    assert "the learning rate is too high" in line


@pytest.mark.parametrize(
    ("algorithm", "is_watched"),
    [
        ({"sft": {}}, True),
        ({"dpo": {"loss": "sigmoid"}}, True),
        ({"dpo": {"loss": "simpo"}}, True),
        ({"kto": {}}, True),
        ({"distill": {"teacher": {"uri": "random://tiny"}, "mode": "online"}}, True),
        ({"distill": {"teacher": {"uri": "random://tiny"}}}, False),
        ({"grpo": {}}, False),
        ({"ppo": {}}, False),
    ],
)
def test_losses_of_data_are_watched_and_those_of_own_samples_are_not(
    algorithm: dict[str, Any], is_watched: bool
) -> None:
    assert (of_job(specs.tiny(algorithm)) is not None) is is_watched


def test_a_pair_that_is_hard_after_a_hinge_has_become_0_is_no_spike() -> None:
    assert reports([1.0] * 5 + [0.0] * 30 + [0.4]) == {}


def test_the_line_says_which_step_how_far_and_under_which_circumstances() -> None:
    losses = [2.0, 2.2] * 20 + [7.1]
    ((step, line),) = reports(losses).items()
    assert step == 41
    # The median of 20 twos and 20 2.2s is 2.1, every distance to it 0.1.
    assert line.startswith(
        "warning: step 41: loss 7.1 is 5 above 2.1, the median of the 40 steps before, 34 times their"
    )
    assert "(gradient norm 3, learning rate 2.00e-05)" in line
    assert "look at the data" in reports(losses, norm=0.5)[41]


def test_lines_are_rare_however_long_it_lasts() -> None:
    reported = reports([2.0, 2.2] * 40 + [9.0, 9.5] * 15)
    assert list(reported) == [81, 81 + SILENCE]


def test_nothing_is_said_before_enough_steps_are_known_nor_of_losses_that_are_not_finite() -> None:
    assert reports([2.0] * (LEAST - 1) + [9.0]) == {}
    assert reports([2.0] * 40 + [float("nan"), float("inf"), 2.0]) == {}


def test_a_falling_loss_is_no_spike_and_a_small_step_up_of_a_smooth_one_is_none() -> None:
    assert reports([8.0 * 0.9**i for i in range(80)]) == {}
    assert reports([2.0] * 40 + [2.4]) == {}
    assert list(reports([2.0] * 40 + [2.6])) == [41]
