"""Numbers of the machine: rates, percentiles, utilisation; and the share of tokens that the model would have said."""

import jax.numpy as jnp
import numpy as np
import pytest

from ptapi import run_directory
from ptapi.spec import Accelerator
from pttrainer.batch import Batch
from pttrainer.losses.chunked_logprobs import token_stats
from pttrainer.models import Model, preset
from pttrainer.training.throughput import Meter, Work, peak_flops

MODEL = Model(preset("tiny"))


def test_rates_are_of_the_steps_seconds() -> None:
    facts = Meter(MODEL, peak_flops=1e12).facts(Work(100, 40, 5e11, {"seconds/data_wait": 0.1}), 2.0)
    assert facts[run_directory.TOKENS_PER_SECOND] == 50.0
    assert facts[run_directory.TRAINED_TOKENS_PER_SECOND] == 20.0
    assert facts[run_directory.TOKENS_PER_SECOND_OF_TRAINING] == 100 / 1.9
    assert facts[run_directory.MFU] == 0.25
    assert facts["seconds/data_wait"] == 0.1
    assert 0.01 < facts[run_directory.HOST_MEMORY] < 100.0


def test_compiling_is_no_part_of_a_step_and_the_rollout_is() -> None:
    """A first step of 9 seconds of sampling and 1 of training, after a minute of compiling."""
    facts = Meter(MODEL, None).facts(Work(100, 40, 1.0, {"seconds/rollout": 9.0, "seconds/compile": 60.0}), 10.0)
    assert facts["seconds/train"] == 1.0
    assert facts[run_directory.TOKENS_PER_SECOND] == 10.0


def test_percentiles_forget_what_is_older_than_100_steps() -> None:
    meter, work = Meter(MODEL, None), Work(1, 1, 1.0, {})
    meter.facts(work, 1e6)
    for seconds in range(1, 101):
        facts = meter.facts(work, float(seconds))
    assert [facts[f"seconds/p{p}"] for p in (50, 90, 99)] == pytest.approx([50.5, 90.1, 99.01])
    assert run_directory.MFU not in facts


def test_seconds_are_booked_once_for_the_next_batch() -> None:
    meter = Meter(MODEL, None)
    batch = _batch()
    with meter.spending("compile"):
        pass
    assert set(meter.of_batch(batch).spent) == {"seconds/compile"}
    assert not meter.of_batch(batch).spent


def test_the_peak_is_that_of_all_chips_and_none_on_cpu() -> None:
    assert peak_flops(Accelerator(type="v5p-8")) == pytest.approx(4 * 459e12)
    assert peak_flops(Accelerator(type="v5e-16", slices=2)) == pytest.approx(32 * 197e12)
    assert peak_flops(Accelerator(type="cpu-8")) is None


def test_every_metric_of_the_machine_is_known_as_one() -> None:
    facts = Meter(MODEL, 1.0).facts(Work(1, 1, 1.0, {"seconds/compile": 1.0}), 1.0)
    assert all(run_directory.is_of_machine(name) for name in facts)
    assert not any(
        map(
            run_directory.is_of_machine,
            (run_directory.LOSS, run_directory.ACCURACY, run_directory.GRAD_NORM, "eval/loss"),
        )
    )


def test_a_token_is_hit_where_none_is_more_likely() -> None:
    hidden_BTD = jnp.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]])
    head_VD = jnp.array([[2.0, 0.0], [1.0, 3.0], [0.0, 3.0]])  # the last two are equal for the second hidden state
    targets, mask = jnp.array([[0, 1, 2, 1]]), jnp.array([[1.0, 1.0, 1.0, 0.0]])
    stats = token_stats(hidden_BTD, head_VD, targets, mask)
    assert stats.hit_BT is not None
    np.testing.assert_array_equal(stats.hit_BT, [[1, 0, 1, 0]])


def _batch() -> Batch:
    ids, ones = np.ones((1, 4), np.int32), np.ones((1, 4), np.float32)
    return Batch(ids, ids, ids, ids, ones, ones)
