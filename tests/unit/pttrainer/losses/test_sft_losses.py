"""Options of the SFT loss: values and gradients of the chunked path against the formula on full logits."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from ptapi.spec.algorithm import Sft as Spec
from pttrainer.algorithms import sft
from pttrainer.batch import Batch
from pttrainer.losses.chunked_logprobs import Head, TokenStats, token_loss

B, T, D, V = 3, 11, 8, 23
SPECS = {
    "plain": Spec(),
    "dft": Spec(loss="dft"),
    "smooth": Spec(label_smoothing=0.2),
    "z": Spec(z_loss=0.01),
    "smooth z": Spec(label_smoothing=0.1, z_loss=0.3),
    "dft z": Spec(loss="dft", z_loss=0.3),
}
HEADS = {"plain": Head(chunk=4), "capped": Head(softcap=1.5, chunk=2), "one chunk": Head(chunk=16)}


def case(seed: int = 0) -> tuple[Array, Array, Batch]:
    """Ragged masks, a row in which nothing counts, two examples a row."""
    keys = jax.random.split(jax.random.key(seed), 4)
    mask_BT = (jax.random.uniform(keys[3], (B, T)) > 0.4).astype(jnp.float32).at[1].set(0.0)
    zeros = jnp.zeros((B, T), jnp.int32)
    segments = zeros + 1 + (jnp.arange(T) > 4)
    targets = jax.random.randint(keys[2], (B, T), 0, V)
    batch = Batch(zeros, targets, zeros, segments, mask_BT, mask_BT / mask_BT.sum())
    return jax.random.normal(keys[0], (B, T, D)), 0.3 * jax.random.normal(keys[1], (V, D)), batch


def direct(spec: Spec, head: Head, batch: Batch, hidden: Array, weight: Array) -> Array:
    """The papers' formulas, on logits of the whole batch."""
    logits = jnp.einsum("btd,vd->btv", hidden, weight)
    if head.softcap is not None:
        logits = head.softcap * jnp.tanh(logits / head.softcap)
    logps = jax.nn.log_softmax(logits)
    nll = -jnp.take_along_axis(logps, batch.targets_BT[..., None], axis=-1)[..., 0]
    loss = nll
    if spec.loss == "dft":
        loss = jax.lax.stop_gradient(jnp.exp(-nll)) * nll
    loss = (1 - spec.label_smoothing) * loss - spec.label_smoothing * logps.mean(axis=-1)
    loss += spec.z_loss * jnp.log(jnp.sum(jnp.exp(logits), axis=-1)) ** 2
    return jnp.sum(loss * batch.weight_BT)


def chunked(spec: Spec, head: Head, batch: Batch, hidden: Array, weight: Array) -> Array:
    def weighted(stats: TokenStats, part: Batch) -> Array:
        return sft.token(stats, spec) * part.weight_BT

    how = head._replace(level=spec.label_smoothing > 0 or spec.z_loss > 0)
    return token_loss(weighted, how, hidden, weight, batch)[0]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("head", HEADS)
def test_value_and_gradients_are_those_of_the_formula_on_full_logits(spec: str, head: str) -> None:
    hidden, weight, batch = case()

    def both(of: Any) -> Any:
        loss = lambda h, w: of(SPECS[spec], HEADS[head], batch, h, w)  # noqa: E731
        return jax.jit(jax.value_and_grad(loss, (0, 1)))(hidden, weight)

    (got, gradients), (wanted, exact) = both(chunked), both(direct)
    assert float(got) == pytest.approx(float(wanted), rel=1e-5)
    for ours, theirs in zip(gradients, exact, strict=True):
        assert float(jnp.abs(theirs).max()) > 1e-3
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_losses_of_one_token_by_hand() -> None:
    """Two words with logits ln 3 and 0: probabilities 3/4 and 1/4, log-partition ln 4."""
    one = lambda x: jnp.full((1, 1), x)  # noqa: E731
    stats = TokenStats(one(math.log(3 / 4)), one(0.0), None, one(math.log(4)), one(math.log(3) / 2))
    nll = math.log(4 / 3)
    assert float(sft.token(stats, Spec())[0, 0]) == pytest.approx(nll)
    assert float(sft.token(stats, Spec(loss="dft"))[0, 0]) == pytest.approx(0.75 * nll)
    spread = (math.log(4 / 3) + math.log(4)) / 2
    assert float(sft.token(stats, Spec(label_smoothing=0.1))[0, 0]) == pytest.approx(0.9 * nll + 0.1 * spread)
    assert float(sft.token(stats, Spec(z_loss=0.5))[0, 0]) == pytest.approx(nll + 0.5 * math.log(4) ** 2)


def test_the_loss_without_options_compiles_to_what_it_was() -> None:
    """The plain loss asks for nothing more of the head: the same operations as −log q written by itself."""
    hidden, weight, batch = case()

    def plain(h: Array, w: Array) -> Array:
        return token_loss(lambda stats, part: -stats.logps_BT * part.weight_BT, HEADS["plain"], h, w, batch)[0]

    def ours(h: Array, w: Array) -> Array:
        return chunked(Spec(), HEADS["plain"], batch, h, w)

    texts = [str(jax.make_jaxpr(jax.grad(f, (0, 1)))(hidden, weight)) for f in (plain, ours)]
    assert texts[0] == texts[1]
    assert len(texts[0]) > 1000
