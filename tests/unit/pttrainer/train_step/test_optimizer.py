"""Learning rates by hand, and what weight decay leaves alone."""

import jax.numpy as jnp
import numpy as np
import pytest

from ptapi.spec import Optimizer, Schedule
from pttrainer.train_step.optimizer import transformation


def rates(total: int, **fields: object) -> list[float]:
    rate = transformation.schedule(Schedule(**fields), 1.0, total)  # type: ignore[arg-type]
    return [float(rate(step)) for step in range(total)]


def test_warm_up_is_linear_and_the_first_step_already_moves() -> None:
    assert rates(20, kind="constant", warmup_fraction=0.2)[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


@pytest.mark.parametrize("kind", ["linear", "cosine"])
@pytest.mark.parametrize("total", [2, 10, 1000])
def test_the_decay_ends_at_the_last_step_of_the_run(kind: str, total: int) -> None:
    factors = rates(total, kind=kind, warmup_fraction=0.03, final_fraction=0.1)
    assert factors[-1] == pytest.approx(0.1)
    assert max(factors) == pytest.approx(1.0)


def test_linear_decay_is_linear() -> None:
    wanted = [1.0, 0.75, 0.5, 0.25, 0.0]
    assert rates(5, kind="linear", warmup_fraction=0.0, final_fraction=0.0) == pytest.approx(wanted)


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_one_step_runs_trains_at_the_peak(kind: str) -> None:
    assert rates(1, kind=kind) == pytest.approx([1.0])


def test_weight_decay_shrinks_matrices_and_leaves_norms_alone() -> None:
    params = {"layers": {"norm": {"scale": jnp.ones((2, 4))}, "mlp": {"up": jnp.ones((2, 4, 4))}}}
    updates = transformation.build(Optimizer(weight_decay=0.5), lambda step: 0.1)
    zeros = {"layers": {"norm": {"scale": jnp.zeros((2, 4))}, "mlp": {"up": jnp.zeros((2, 4, 4))}}}
    change, _ = updates.update(zeros, updates.init(params), params)
    np.testing.assert_allclose(change["layers"]["mlp"]["up"], -0.05, rtol=1e-6)
    np.testing.assert_array_equal(change["layers"]["norm"]["scale"], 0.0)


def test_large_gradients_are_scaled_to_the_norm() -> None:
    params = {"w": jnp.zeros(2)}
    updates = transformation.build(Optimizer(max_grad_norm=1.0, eps=1e-8), lambda step: 1.0)
    _, moments = updates.update({"w": jnp.array([30.0, 40.0])}, updates.init(params), params)
    np.testing.assert_allclose(moments[1][0].mu["w"], 0.1 * np.array([0.6, 0.8]), rtol=1e-6)
