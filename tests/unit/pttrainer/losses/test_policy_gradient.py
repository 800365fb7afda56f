"""Policy losses: values computed by hand, gradients against formulas, degenerate and extreme cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from pttrainer.data.loss_weights import partial
from pttrainer.losses import policy_gradient, policy_metrics, reference_kl
from pttrainer.losses.policy_gradient import VARIANTS, Clip

# Two sequences of three and two tokens; ratios of exp(0.3), exp(-0.3), 1, exp(0.1), 2.
OLD = np.log(np.array([[0.2, 0.5, 0.4, 0.9], [0.3, 0.1, 0.7, 0.9]], np.float32))
NEW = OLD + np.array([[0.3, -0.3, 0.0, 0.0], [0.1, np.log(2.0), 0.0, 0.0]], np.float32)
MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.float32)
A = np.array([[1.5], [-0.5]], np.float32) * MASK
MAX_NEW = 10


def reduced(name: str, new: Array, old: Array = OLD, clip: Clip | None = None, advantages: Array = A) -> Array:
    variant = VARIANTS[name]
    loss_BT, _ = variant.loss(jnp.asarray(new), jnp.asarray(old), advantages, MASK, clip or variant.clip)
    return jnp.sum(loss_BT * variant.weights(MASK, MAX_NEW))


def by_hand_tokens(low: float, high: float) -> list[list[float]]:
    """−min(w·A, clip(w)·A) of every token that counts."""
    rows = []
    for ratios, advantage in (([np.exp(0.3), np.exp(-0.3), 1.0], 1.5), ([np.exp(0.1), 2.0], -0.5)):
        rows.append([-min(w * advantage, min(max(w, 1 - low), 1 + high) * advantage) for w in ratios])
    return rows


@pytest.mark.parametrize("name", ["grpo", "dr-grpo", "dapo", "rloo"])
def test_token_level_losses_by_hand(name: str) -> None:
    clip = VARIANTS[name].clip
    assert (clip.low, clip.high) == ((0.2, 0.28) if name == "dapo" else (0.2, 0.2))
    first, second = by_hand_tokens(clip.low, clip.high)
    wanted = {
        "grpo": (np.mean(first) + np.mean(second)) / 2,
        "dr-grpo": (np.sum(first) + np.sum(second)) / (2 * MAX_NEW),
        "dapo": (np.sum(first) + np.sum(second)) / 5,
        "rloo": (np.sum(first) + np.sum(second)) / 5,
    }[name]
    np.testing.assert_allclose(reduced(name, NEW), wanted, rtol=1e-6)


@pytest.mark.parametrize("name", ["gspo", "gspo-token"])
def test_sequence_level_losses_by_hand(name: str) -> None:
    assert VARIANTS[name].clip == Clip(3e-4, 4e-4)
    s = [np.exp(0.0), np.exp((0.1 + np.log(2.0)) / 2)]
    wanted = (-1.5 * s[0] - min(s[1] * -0.5, (1 + 4e-4) * -0.5)) / 2
    np.testing.assert_allclose(reduced(name, NEW), wanted, rtol=1e-5)


def test_sapo_by_hand() -> None:
    def gate(w: float, temperature: float) -> float:
        return 4.0 / temperature / (1.0 + np.exp(-temperature * (w - 1.0)))

    first = [-1.5 * gate(w, 0.8) for w in (np.exp(0.3), np.exp(-0.3), 1.0)]
    second = [0.5 * gate(w, 2.0) for w in (np.exp(0.1), 2.0)]
    clip = VARIANTS["sapo"].clip._replace(soft=(0.8, 2.0))
    np.testing.assert_allclose(reduced("sapo", NEW, clip=clip), (np.mean(first) + np.mean(second)) / 2, rtol=1e-6)


def test_sapo_has_the_plain_gradient_at_ratio_one_and_fades_away_from_it_sooner_for_negative_advantages() -> None:
    def slopes(ratio: float) -> np.ndarray:
        one = np.ones((2, 1), np.float32)
        sign = np.array([[1.0], [-1.0]], np.float32)
        clip = VARIANTS["sapo"].clip
        old = np.zeros((2, 1), np.float32)
        total = lambda new: jnp.sum(VARIANTS["sapo"].loss(new, old, sign, one, clip)[0])  # noqa: E731
        return np.asarray(jax.grad(total)(jnp.full((2, 1), np.log(ratio))))[:, 0]

    np.testing.assert_allclose(slopes(1.0), [-1.0, 1.0], rtol=1e-6)
    up, down = np.abs(slopes(4.0)) / 4.0  # per unit of the ratio: 4σ(1 − σ)
    assert down < up < 0.25
    np.testing.assert_allclose(slopes(1e8), 0.0, atol=1e-6)


def test_cispo_by_hand() -> None:
    weights = [[1.2, np.exp(-0.3), 1.0], [np.exp(0.1), 1.2]]
    total = sum(
        -w * a * lp
        for ws, a, lps in zip(weights, (1.5, -0.5), NEW, strict=True)
        for w, lp in zip(ws, lps, strict=False)
    )
    np.testing.assert_allclose(reduced("cispo", NEW, clip=Clip(0.2, 1.2)), total / 5, rtol=1e-6)
    assert VARIANTS["cispo"].clip.high == 5.0


def test_luspo_sums_over_tokens_what_gspo_averages() -> None:
    clip = Clip(0.2, 0.3)
    wanted = (-1.5 * 3 - min(np.sqrt(np.exp(0.1) * 2.0) * -0.5, 1.3 * -0.5) * 2) / 2
    np.testing.assert_allclose(reduced("luspo", NEW, clip=clip), wanted, rtol=1e-6)
    assert (VARIANTS["luspo"].clip.low, VARIANTS["luspo"].clip.high) == (2e-3, 2.5e-3)


def test_vespo_weighs_a_sequence_by_its_whole_ratio() -> None:
    """Ratios of the sequences: 1, whose weight is 1, and 2·exp(0.1)."""
    W = 2.0 * np.exp(0.1)
    weight = np.exp(2.0 + 3.0 * np.log(W) - 2.0 * W)
    total = -1.5 * NEW[0, :3].sum() + 0.5 * weight * NEW[1, :2].sum()
    np.testing.assert_allclose(reduced("vespo", NEW), total / 5, rtol=1e-5)


def test_dppo_keeps_a_rare_token_whose_ratio_doubled_and_drops_a_usual_one_that_moved_as_far() -> None:
    """From 0.02 to 0.05 and from 0.5 to 0.7, where A > 0; from 0.3 to 0.1 and to 0.5, where A < 0."""
    old, new = (
        np.log([[0.02, 0.5], [0.3, 0.3]]).astype(np.float32),
        np.log([[0.05, 0.7], [0.1, 0.5]]).astype(np.float32),
    )
    advantages, mask = np.array([[2.0], [-1.0]], np.float32) * np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)

    def gradient(name: str) -> Array:
        variant = VARIANTS[name]
        return jax.grad(lambda x: jnp.sum(variant.loss(x, jnp.asarray(old), advantages, mask, variant.clip)[0]))(new)

    wanted = [[-2.0 * 2.5, 0.0], [0.0, 0.5 / 0.3]]
    np.testing.assert_allclose(gradient("dppo"), wanted, rtol=1e-5)
    # KL of two outcomes: 0.012, 0.087; 0.154, 0.087. The last moved against its advantage, and is kept.
    np.testing.assert_allclose(gradient("dppo-kl"), wanted, rtol=1e-5)


def test_dppo_bounds_the_ratio_at_20() -> None:
    old, new = jnp.log(jnp.full((1, 1), 1e-4)), jnp.log(jnp.full((1, 1), 0.01))
    one, variant = jnp.ones((1, 1)), VARIANTS["dppo"]
    slope = jax.grad(lambda x: jnp.sum(variant.loss(x, old, one, one, variant.clip)[0]))(new)
    np.testing.assert_allclose(slope, [[-20.0]], rtol=1e-6)


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_with_equal_policies_the_gradient_is_the_plain_policy_gradient(name: str) -> None:
    gradient = jax.grad(lambda new: reduced(name, new))(jnp.asarray(OLD))
    np.testing.assert_allclose(gradient, -A * VARIANTS[name].weights(MASK, MAX_NEW), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", ["grpo", "dr-grpo", "dapo", "rloo", "gspo"])
def test_gradients_agree_with_finite_differences(name: str) -> None:
    new = (OLD + 1e-4 * np.array([[1.0, -2.0, 0.5, 0.0], [0.3, 0.2, 0.0, 0.0]])).astype(np.float64)
    with jax.enable_x64(True):
        gradient = jax.grad(lambda x: reduced(name, x, np.float64(OLD)))(jnp.asarray(new))
        for at in [(0, 0), (0, 2), (1, 1)]:
            step = np.zeros_like(new)
            step[at] = 1e-6
            up, down = (float(reduced(name, jnp.asarray(new + sign * step), np.float64(OLD))) for sign in (1, -1))
            np.testing.assert_allclose(gradient[at], (up - down) / 2e-6, rtol=1e-4)


def test_gspo_token_has_the_gradient_of_gspo_when_advantages_are_equal_within_a_sequence() -> None:
    new = jnp.asarray(OLD + 1e-4)
    by_token = jax.grad(lambda x: reduced("gspo-token", x))(new)
    np.testing.assert_allclose(by_token, jax.grad(lambda x: reduced("gspo", x))(new), rtol=1e-5, atol=1e-8)


def test_a_clipped_token_has_no_gradient_and_cispo_keeps_it() -> None:
    gradient = jax.grad(lambda new: reduced("grpo", new))(jnp.asarray(NEW))
    assert gradient[0, 0] == 0.0  # ratio above 1 + ε with A > 0
    assert gradient[1, 1] != 0.0  # ratio above 1 + ε with A < 0: not clipped
    kept = jax.grad(lambda new: reduced("cispo", new, clip=Clip(0.2, 1.2)))(jnp.asarray(NEW))
    np.testing.assert_allclose(kept[1, 1], -1.2 * -0.5 / 5, rtol=1e-6)


def test_gspo_clips_where_epsilon_of_grpo_would_not() -> None:
    new = jnp.asarray(OLD + 0.01)
    assert np.all(jax.grad(lambda x: reduced("gspo", x))(new)[0] == 0.0)
    assert np.all(jax.grad(lambda x: reduced("gspo", x, clip=Clip(0.2, 0.2)))(new)[0, :3] != 0.0)


def test_dual_clip_bounds_the_loss_of_bad_tokens() -> None:
    new = OLD.copy()
    new[1, 0] += 4.0
    single = policy_gradient.surrogate(jnp.exp(new - OLD), A, Clip(0.2, 0.2))
    dual = policy_gradient.surrogate(jnp.exp(new - OLD), A, Clip(0.2, 0.2, dual=3.0))
    np.testing.assert_allclose(single[1, 0], 0.5 * np.exp(4.0), rtol=1e-5)
    assert dual[1, 0] == 1.5
    np.testing.assert_array_equal(dual[0], single[0])


@pytest.mark.parametrize("name", sorted(VARIANTS))
@pytest.mark.parametrize("distance", [-1e4, 1e4])
def test_extreme_ratios_stay_finite(name: str, distance: float) -> None:
    value, gradient = jax.value_and_grad(lambda new: reduced(name, new))(jnp.asarray(OLD + distance))
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_zero_advantages_and_masked_tokens_have_no_gradient(name: str) -> None:
    assert not np.any(jax.grad(lambda new: reduced(name, new, advantages=0.0 * A))(jnp.asarray(NEW)))
    assert not np.any(jax.grad(lambda new: reduced(name, new))(jnp.asarray(NEW))[MASK == 0])


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_kl_as_a_loss_has_the_gradient_of_the_reverse_kl(estimator: str) -> None:
    """Expectation over the policy of the estimator's gradient, on a categorical of three outcomes."""
    theta, reference = jnp.array([0.2, -0.5, 0.7]), jax.nn.log_softmax(jnp.array([1.0, 0.1, -0.4]))
    exact = jax.grad(lambda t: jnp.sum(jax.nn.softmax(t) * (jax.nn.log_softmax(t) - reference)))(theta)

    def estimated(t: Array) -> Array:
        logps = jax.nn.log_softmax(t)
        old = jax.lax.stop_gradient(logps)
        return jnp.sum(jnp.exp(old) * reference_kl.kl(estimator, logps, reference, jnp.exp(logps - old)))

    np.testing.assert_allclose(jax.grad(estimated)(theta), exact, rtol=1e-5)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_kl_off_policy_has_an_unbiased_gradient_and_with_k3_an_unbiased_value(estimator: str) -> None:
    theta, behind = jnp.array([0.2, -0.5, 0.7]), jax.nn.log_softmax(jnp.array([0.0, 0.0, 0.3]))
    reference = jax.nn.log_softmax(jnp.array([1.0, 0.1, -0.4]))

    def exact(t: Array) -> Array:
        return jnp.sum(jax.nn.softmax(t) * (jax.nn.log_softmax(t) - reference))

    def estimated(t: Array) -> Array:
        logps = jax.nn.log_softmax(t)
        return jnp.sum(jnp.exp(behind) * reference_kl.kl(estimator, logps, reference, jnp.exp(logps - behind)))

    np.testing.assert_allclose(jax.grad(estimated)(theta), jax.grad(exact)(theta), rtol=1e-4, atol=1e-7)
    if estimator == "k3":
        np.testing.assert_allclose(estimated(theta), exact(theta), rtol=1e-5)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("distance", [-80.0, -30.0, -13.0, 13.0, 30.0, 80.0])
def test_kl_pulls_towards_the_reference_from_however_far(estimator: str, distance: float) -> None:
    """On-policy, the gradient of either estimator is log π − log π_ref."""
    logp = jnp.array([-1.5])
    pull = jax.grad(lambda x: reference_kl.kl(estimator, x, logp - distance, jnp.exp(x - logp))[0])
    np.testing.assert_allclose(pull(logp), distance, rtol=1e-6)


def test_k3_of_log_probs_that_rounding_alone_keeps_apart_is_exact_and_never_negative() -> None:
    apart = np.array([0.0, 1e-8, -1e-8, 1e-6, -3e-6, 1e-4, -1e-4, 0.02, -0.0999, 0.0999, 0.1001, -0.1001, -2.0, 3.0])
    apart = apart.astype(np.float32)
    got = np.asarray(jax.jit(reference_kl.k3)(jnp.zeros_like(apart), apart), np.float64)
    wide = apart.astype(np.longdouble)
    assert np.all(got >= 0.0)
    np.testing.assert_allclose(got[1:], (np.expm1(wide) - wide)[1:].astype(np.float64), rtol=4e-6)
    slope = jax.vmap(jax.grad(lambda d: reference_kl.k3(jnp.float32(0.0), d)))(jnp.asarray(apart))
    np.testing.assert_allclose(slope, np.expm1(wide).astype(np.float64), rtol=4e-6)


def test_k1_as_a_loss_would_have_no_gradient_which_is_why_it_is_not_here() -> None:
    theta, reference = jnp.array([0.2, -0.5, 0.7]), jax.nn.log_softmax(jnp.array([1.0, 0.1, -0.4]))

    def k1(t: Array) -> Array:
        logps = jax.nn.log_softmax(t)
        return jnp.sum(jnp.exp(jax.lax.stop_gradient(logps)) * (logps - reference))

    np.testing.assert_allclose(jax.grad(k1)(theta), 0.0, atol=1e-6)


def larger() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Eight sequences, one of a single token and one of none: new, old, advantages, mask."""
    random = np.random.default_rng(3)
    mask = (np.arange(8) < np.array([[8], [5], [1], [3], [0], [7], [2], [4]])).astype(np.float32)
    old = -random.exponential(1.0, (8, 8)).astype(np.float32) * mask
    new = old + random.normal(0, 0.3, (8, 8)).astype(np.float32) * mask
    return new, old, random.normal(0, 1, (8, 1)).astype(np.float32) * mask, mask


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_losses_are_the_same_whatever_order_padding_micro_batches_and_devices(name: str) -> None:
    variant, arrays = VARIANTS[name], larger()

    def total(new: Array, old: Array, advantages: Array, mask: Array, weights: Array) -> Array:
        return jnp.sum(variant.loss(new, old, advantages, mask, variant.clip)[0] * weights)

    step = jax.jit(jax.value_and_grad(total))
    whole = *arrays, variant.weights(arrays[-1], MAX_NEW)
    value, gradient = step(*whole)
    assert np.all(gradient[4] == 0)  # a sequence without a token
    order = np.random.default_rng(1).permutation(8)
    turned, turned_gradient = step(*(x[order] for x in whole))
    padded, _ = step(*(np.pad(x, ((0, 0), (0, 5))) for x in whole))
    parts = [step(*(x[first::4] for x in whole)) for first in range(4)]
    mesh = jax.make_mesh((4, 2), ("rows", "tokens"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows", "tokens"))
    spread, spread_gradient = step(*(jax.device_put(x, where) for x in whole))
    np.testing.assert_allclose([turned, padded, sum(part for part, _ in parts), spread], value, rtol=1e-5)
    np.testing.assert_allclose(turned_gradient, gradient[order], atol=1e-7)
    np.testing.assert_allclose(parts[1][1], gradient[1::4], atol=1e-7)
    np.testing.assert_allclose(spread_gradient, gradient, atol=1e-7)


def test_a_clip_is_counted_where_it_takes_effect() -> None:
    ratio, advantages = jnp.array([[0.5, 0.5, 1.5, 1.5, 6.0, 6.0]]), jnp.array([[1.0, -1.0, 1.0, -1.0, 1.0, -1.0]])

    old = jnp.log(jnp.array([[0.25, 0.35, 0.1, 0.9, 0.02, 0.1]]))

    def counted(name: str, dual: float | None = None) -> list[list[float]]:
        variant = policy_gradient.VARIANTS[name]
        clip = variant.clip._replace(dual=dual)
        metrics = policy_metrics.of_ratio(ratio, old, advantages, clip, variant.clipped)
        means = (metrics[f"clip_fraction/{side}"] for side in ("low", "high"))
        return [np.asarray(mean[0], float)[0].tolist() for mean in means]

    assert counted("grpo") == [[0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 1, 0]]
    assert counted("grpo", dual=3.0) == [[0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 1, 1]]
    assert counted("cispo") == [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]]
    # Probabilities that moved by 0.125, 0.175, 0.05, 0.45, 0.1 and 0.5.
    assert counted("dppo") == [[0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]
    assert counted("vespo") == counted("sapo") == [[0] * 6] * 2


def test_the_share_of_ratios_far_from_one_by_hand() -> None:
    """Ratios 1, 0.95, 1.09 count as near; 0.89, 1.12 and e³⁰ do not; what is no token of the policy does not count."""
    old = np.log(np.array([[0.5, 0.95, 0.89, 1.12], [1.09, 1.0, 7.0, 7.0]], np.float32))
    sampler, mask = np.log(np.array([[0.5, 1, 1, 1], [1, 1, 1, 1]], np.float32)), np.ones((2, 4), np.float32)
    old[1, 1], mask[1, 2:] = 30.0, 0.0
    metrics = policy_metrics.of_sampler(jnp.asarray(old), jnp.asarray(sampler), jnp.ones((2, 4)))
    share = partial(metrics["sampler/outside"], jnp.asarray(mask))
    assert (float(share.value), float(share.count)) == (3.0, 6.0)
    assert float(jnp.max(metrics["sampler/difference/max"].values_BT)) == 30.0
    ratio = jnp.exp(jnp.asarray(old - sampler))
    of_ratio = policy_metrics.of_ratio(ratio, jnp.asarray(sampler), jnp.zeros((2, 1)), Clip(0.2, 0.2))
    share = partial(of_ratio["ratio/outside"], jnp.asarray(mask))
    assert (float(share.value), float(share.count)) == (3.0, 6.0)
