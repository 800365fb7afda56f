"""Divergence from a teacher: values by hand, gradients against full logits, top-k, nothing as large as all logits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pttrainer.batch import Batch
from pttrainer.losses import divergence
from pttrainer.losses.divergence import OfflineTeacher, Teacher
from pttrainer.models import Model, preset

BETAS = (0.0, 0.3, 0.5, 1.0)
P, Q = np.array([0.7, 0.2, 0.1]), np.array([0.25, 0.5, 0.25])
TINY = Model(preset("tiny"))
V = TINY.config.vocab_size


def kl(p: np.ndarray, q: np.ndarray) -> float:
    return float(np.sum(p * np.log(p / q)))


@pytest.mark.parametrize("beta", BETAS)
def test_values_by_hand(beta: float) -> None:
    mixture = beta * P + (1 - beta) * Q
    wanted = {0.0: kl(P, Q), 1.0: kl(Q, P)}.get(beta, beta * kl(P, mixture) + (1 - beta) * kl(Q, mixture))
    values = divergence.jensen_shannon(jnp.log(P), jnp.log(Q), beta)
    np.testing.assert_allclose(values, wanted, rtol=1e-6)


@pytest.mark.parametrize("beta", BETAS)
def test_a_student_that_is_its_teacher_has_neither_loss_nor_gradient(beta: float) -> None:
    def loss(logits: Any) -> Any:
        return divergence.jensen_shannon(jnp.log(P), jax.nn.log_softmax(logits), beta)

    value, gradient = jax.value_and_grad(loss)(jnp.log(jnp.asarray(P, jnp.float32)))
    np.testing.assert_allclose(value, 0.0, atol=1e-7)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-7)


def test_the_gradient_of_forward_kl_is_what_the_student_says_too_much() -> None:
    gradient = jax.grad(lambda x: divergence.jensen_shannon(jnp.log(P), jax.nn.log_softmax(x), 0.0))(jnp.log(Q))
    np.testing.assert_allclose(gradient, Q - P, atol=1e-6)


def test_the_gradient_of_reverse_kl_is_the_formulas() -> None:
    gradient = jax.grad(lambda x: divergence.jensen_shannon(jnp.log(P), jax.nn.log_softmax(x), 1.0))(jnp.log(Q))
    np.testing.assert_allclose(gradient, Q * (np.log(Q / P) - kl(Q, P)), atol=1e-6)


def batch() -> Batch:
    random = np.random.default_rng(0)
    tokens, targets = random.integers(0, 256, (2, 3, 11)).astype(np.int32)
    positions = np.tile(np.arange(11, dtype=np.int32), (3, 1))
    mask = (np.arange(11) >= [[2], [5], [11]]).astype(np.float32)  # the last row has nothing to learn
    return Batch(tokens, targets, positions, np.ones_like(tokens), mask, mask / mask.sum())


STUDENT, TEACHER = (TINY.init(jax.random.key(seed)) for seed in (0, 1))
STUDENT["embedding"], TEACHER["embedding"] = STUDENT["embedding"] * 20, TEACHER["embedding"] * 20  # far from uniform


def losses(guide: Teacher) -> Any:
    b = jax.tree.map(jnp.asarray, batch())

    @jax.jit
    @jax.value_and_grad
    def loss(params: Any) -> Any:
        hidden = TINY.forward(params, b.tokens_BT, b.positions_BT, b.segment_ids_BT)
        return jnp.sum(guide.stats(TEACHER, TINY, hidden, TINY.head(params), b).divergence_BT * b.weight_BT)

    return loss(STUDENT)


def whole(beta: float) -> Any:
    """With all logits at once."""
    b = jax.tree.map(jnp.asarray, batch())
    inputs = b.tokens_BT, b.positions_BT, b.segment_ids_BT

    @jax.jit
    @jax.value_and_grad
    def loss(params: Any) -> Any:
        student, teacher = (jax.nn.log_softmax(TINY.logits(p, TINY.forward(p, *inputs))) for p in (params, TEACHER))
        return jnp.sum(divergence.jensen_shannon(teacher, student, beta) * b.weight_BT)

    return loss(STUDENT)


def test_chunks_give_the_loss_and_gradient_of_whole_logits() -> None:
    (value, gradient), (wanted, wanted_gradient) = losses(Teacher(TINY, 0.5, chunk=4)), whole(0.5)
    assert wanted > 0.05
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), gradient, wanted_gradient)


def test_as_many_outcomes_as_tokens_are_the_whole_vocabulary_and_fewer_never_say_more() -> None:
    values = [float(losses(Teacher(TINY, 0.5, top_k=k, chunk=4))[0]) for k in (1, 16, V)]
    exact = float(losses(Teacher(TINY, 0.5, chunk=4))[0])
    assert values[0] < values[1] < exact
    assert values[2] == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("lead", [5.0, 20.0, 40.0])
def test_a_student_that_is_surer_than_its_teacher_is_held_back_however_sure(lead: float) -> None:
    """With one outcome and the rest, the gradient of forward KL at the outcome is q − p, as over the vocabulary."""
    teacher = jnp.log(jnp.array([[[0.6, 0.3, 0.1]]]))

    def loss(logits: Any) -> Any:
        outcomes = Teacher(TINY, 0.0, top_k=1)._outcomes(teacher, jax.nn.log_softmax(logits))
        return jnp.sum(divergence.jensen_shannon(*outcomes, 0.0))

    gradient = jax.grad(loss)(jnp.array([[[lead, 0.0, 0.0]]]))
    sure = np.exp(lead) / (np.exp(lead) + 2.0)
    np.testing.assert_allclose(gradient[0, 0, 0], sure - 0.6, rtol=1e-4)


def test_logits_of_all_tokens_exist_in_no_pass() -> None:
    b = jax.tree.map(lambda x: jnp.asarray(np.tile(x, (4, 8) if x.shape[1] > 1 else (4, 1))), batch())
    guide = Teacher(TINY, 0.5, chunk=4)

    def loss(hidden: Any, head: Any) -> Any:
        return jnp.sum(guide.stats(TEACHER, TINY, hidden, head, b).divergence_BT)

    rows, tokens = b.mask_BT.shape
    hidden = jnp.zeros((rows, tokens, TINY.config.d_model))
    text = str(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(hidden, TINY.head(STUDENT)))
    assert f"{rows},4,{V}]" in text
    assert f"{rows},{tokens},{V}]" not in text
    assert f"{tokens // 4},{rows},4,{V}]" not in text


def test_masked_tokens_have_no_divergence_and_no_gradient() -> None:
    b = jax.tree.map(jnp.asarray, batch())
    guide = Teacher(TINY, 1.0, chunk=4)
    hidden = jax.random.normal(jax.random.key(2), (3, 11, TINY.config.d_model))

    def total(hidden: Any) -> Any:
        return jnp.sum(guide.stats(TEACHER, TINY, hidden, TINY.head(STUDENT), b).divergence_BT)

    gradient = jax.jit(jax.grad(total))(hidden)
    assert np.all(np.abs(gradient).max(axis=-1)[batch().mask_BT == 0] == 0)
    assert np.all(np.abs(gradient).max(axis=-1)[batch().mask_BT > 0] > 0)


def test_what_the_data_say_of_the_teacher_is_worth_what_the_teacher_says() -> None:
    b = jax.tree.map(jnp.asarray, batch())
    hidden = jax.random.normal(jax.random.key(2), (3, 11, TINY.config.d_model))
    logits = TINY.logits(TEACHER, TINY.forward(TEACHER, b.tokens_BT, b.positions_BT, b.segment_ids_BT))
    logps, ids = jax.lax.top_k(jax.nn.log_softmax(logits), 7)
    with_teacher = b._replace(teacher_ids_BTK=ids, teacher_logps_BTK=logps)

    def compared(how: Teacher | OfflineTeacher, teacher: Any) -> Any:
        def loss(hidden: Any) -> Any:
            return jnp.sum(how.stats(teacher, TINY, hidden, TINY.head(STUDENT), with_teacher).divergence_BT)

        return jax.jit(jax.value_and_grad(loss))(hidden)

    result, wanted = compared(OfflineTeacher(0.5, chunk=4), {}), compared(Teacher(TINY, 0.5, top_k=7, chunk=4), TEACHER)
    assert wanted[0] > 0.1
    np.testing.assert_allclose(result[0], wanted[0], rtol=1e-5)
    np.testing.assert_allclose(result[1], wanted[1], atol=1e-6)
