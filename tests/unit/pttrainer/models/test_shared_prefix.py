"""Samples that share their prompt in training: the losses, scores and gradients of whole rows, and fewer FLOPs."""

import dataclasses
from fractions import Fraction
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.peers.models import CASES
from tests.builders.trainer import specs

from ptapi.spec import Optimizer, PostTrainJobSpec, Schedule
from pttrainer.algorithms import grpo, prompt_sharing
from pttrainer.batch import Batch
from pttrainer.checkpoint import batch_json
from pttrainer.data.prompts import Question
from pttrainer.models import Model, from_hf
from pttrainer.models.shapes import flops
from pttrainer.rollout import groups
from pttrainer.rollout.context import Context
from pttrainer.rollout.groups import Group, Sample
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.sharding import put
from pttrainer.train_step.optimizer import transformation
from pttrainer.train_step.program import Program
from pttrainer.train_step.scoring import score_step
from pttrainer.train_step.step import train_step

TOLERANCE = 1e-6
"""Absolute, of log-probs and of weights after a step that is proportional to the gradient, float32. Measured: 3e-7."""
PROMPTS, SAMPLES = 4, 3
LENGTHS = ((9, 1), (1, 14), (5, 6), (17, 3))
"""Tokens of a prompt, and of its longest completion: Gemma's windows are shorter than the longest of them."""


@lru_cache
def model(family: str) -> Model:
    config = from_hf(CASES[family])
    return Model(dataclasses.replace(config, layers=2, local_layers=config.local_layers[:2]))


@lru_cache
def batch(vocabulary: int, shared: int | None) -> Batch:
    """Groups with advantages, old log-probs and a reference that differ from token to token, not with the layout."""
    random = np.random.default_rng(0)
    sampled = []
    for prompt, longest in LENGTHS:
        question = Question([int(x) for x in random.integers(0, vocabulary, prompt)], "", {})
        lengths = [max(longest - sample, 1) for sample in range(SAMPLES)]
        sampled.append(Group(question, [sample_of(random.integers(0, vocabulary, n)) for n in lengths]))
    advantages = random.normal(size=(PROMPTS, SAMPLES))
    laid = groups.lay_out(sampled, advantages, pad_id=0, length=64, shared=shared)
    noise = random.normal(size=int(laid.mask_BT.sum())).astype(np.float32)
    reference = np.zeros_like(laid.mask_BT)
    reference[laid.mask_BT > 0] = laid.sampler_logps_BT[laid.mask_BT > 0] + 0.1 * noise
    weights = laid.mask_BT / laid.mask_BT.sum(axis=1, keepdims=True) / len(laid.mask_BT)
    return laid._replace(weight_BT=weights, ref_logps_BT=reference, old_logps_BT=reference + 0.1 * laid.mask_BT)


def sample_of(tokens: np.ndarray) -> Sample:
    return Sample([int(x) for x in tokens], -np.linspace(4.0, 5.0, len(tokens), dtype=np.float32), True, "", {}, 1.0)


def spec(**changes: Any) -> PostTrainJobSpec:
    grpo = {"loss": "gspo-token", "groupSize": SAMPLES, "beta": 0.04}
    sizes = {"steps": 1, "batch_size": PROMPTS * SAMPLES, "sequence_length": 1024}
    training = sizes | changes.pop("training", {})
    rollout = {"maxNewTokens": 16, **changes.pop("rollout", {})}
    return specs.tiny(**{"algorithm": {"grpo": grpo}, "training": training, "rollout": rollout, **changes})


@lru_cache
def stepped(family: str, shared: int | None, devices: int = 1, micro: int | None = None) -> tuple[Any, Any, Any]:
    """Weights after a step, its metrics, and the scores before it."""
    mesh = sharding.make_mesh((devices,), jax.devices()[:devices])
    rate = transformation.schedule(Schedule(), 1.0, 10)
    updates = transformation.build(Optimizer(eps=1.0), rate)
    program = Program(model(family), grpo.Loss(spec()), updates, rate, micro)
    layout = program.layout(mesh)
    fresh = jax.jit(lambda: program.new_state(model(family).init(jax.random.key(0))), out_shardings=layout.state)
    with jax.set_mesh(mesh):
        state, placed = fresh(), put(mesh, batch(model(family).config.vocab_size, shared))
        scores = jax.device_get(score_step(model(family), layout.whole)(state.params, placed, 0.7).logps_BT)
        state, metrics = train_step(program, layout)(state, placed, None)
    return jax.device_get(state.params), jax.device_get(metrics), scores[placed.mask_BT > 0]


@pytest.mark.parametrize("family", ["gemma-2", "gpt-oss"])
def test_scores_losses_and_gradients_are_those_of_whole_rows(family: str) -> None:
    whole, shared = stepped(family, None), stepped(family, 24)
    np.testing.assert_allclose(shared[2], whole[2], atol=TOLERANCE)
    assert np.ptp(whole[2]) > 0.1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=TOLERANCE), shared[0], whole[0])
    for name in ("loss", "grad_norm", "kl", "entropy", "sampler/difference"):
        np.testing.assert_allclose(shared[1][name], whole[1][name], rtol=2e-6, err_msg=name)
    assert whole[1]["grad_norm"] > 0.01


@pytest.mark.parametrize(("devices", "micro"), [(4, None), (2, 6)])
def test_devices_and_micro_batches_take_whole_groups(devices: int, micro: int | None) -> None:
    whole, shared = stepped("gemma-2", None), stepped("gemma-2", 24, devices, micro)
    np.testing.assert_allclose(shared[2], whole[2], atol=TOLERANCE)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=TOLERANCE), shared[0], whole[0])


def test_a_micro_batch_is_every_second_group() -> None:
    parts = batch(107, 24).split(2)
    first = batch(107, 24).tokens_BT
    np.testing.assert_array_equal(parts.tokens_BT[0], np.concatenate([first[0:3], first[6:9]]))
    assert parts.prompts.tokens_PT.shape == (2, 2, 24)


@pytest.mark.parametrize("shared", [24, None])
def test_what_is_computed_part_by_part_has_the_order_of_the_rows(shared: int | None) -> None:
    whole = batch(107, shared)
    sizes = []

    def function(part: Batch) -> tuple[Any, None]:
        sizes.append((len(part.tokens_BT), None if part.prompts is None else len(part.prompts.tokens_PT)))
        return part.tokens_BT * 2, None

    doubled, nothing = whole.by_parts(2, function)
    np.testing.assert_array_equal(doubled, whole.tokens_BT * 2)
    assert nothing is None
    assert sizes == [(6, shared and 2)] * 2


@pytest.mark.parametrize(
    ("share", "devices", "shared", "parts"),
    [(Fraction(1), 1, 24, 1), (Fraction(1, 2), 2, 24, 2), (Fraction(2, 3), 2, 24, 2), (Fraction(1, 3), 1, None, 3)],
)
def test_on_fewer_slices_no_device_scores_more_rows_than_on_all(
    share: Fraction, devices: int, shared: int | None, parts: int
) -> None:
    here = SimpleNamespace(share=share, mesh=sharding.make_mesh((devices,), jax.devices()[:devices]))
    assert Context.scoring_parts(cast(Context, here), batch(107, shared)) == parts


def test_a_rows_first_token_is_the_prompts_last() -> None:
    laid, whole = batch(107, 24), batch(107, None)
    assert laid.prompts is not None
    np.testing.assert_array_equal(laid.tokens_BT[3, :2], whole.tokens_BT[3, 0:2])
    np.testing.assert_array_equal(laid.positions_BT[3, :3], [0, 1, 2])
    np.testing.assert_array_equal(laid.prompts.tokens_PT[0, :8], whole.tokens_BT[0, :8])
    np.testing.assert_array_equal(laid.prompts.segment_ids_PT.sum(axis=1), [8, 0, 4, 16])
    np.testing.assert_array_equal(laid.targets_BT[laid.mask_BT > 0], whole.targets_BT[whole.mask_BT > 0])


def test_prompts_are_counted_once() -> None:
    config = dataclasses.replace(model("qwen-3").config, layers=1, local_layers=())
    whole, shared = batch(107, None), batch(107, 24)
    prompts, own = sum(n - 1 for n, _ in LENGTHS), sum(max(n - g, 1) for _, n in LENGTHS for g in range(SAMPLES))
    assert flops.tokens_of(shared) == prompts + own
    assert flops.tokens_of(whole) == SAMPLES * prompts + own
    pairs = sum(n * (n - 1) // 2 for n, _ in LENGTHS)  # of a prompt with itself
    of_whole, of_shared = (
        flops.attention(config, lambda window, each=each: flops.pairs(each, window)) for each in (whole, shared)
    )
    difference = of_whole - of_shared
    assert difference == 4 * config.heads * config.head_dim * (SAMPLES - 1) * pairs


def test_a_checkpoint_keeps_the_prompts() -> None:
    again = batch_json.from_json(batch_json.to_json(batch(107, 24)))
    jax.tree.map(np.testing.assert_array_equal, again, batch(107, 24))
    assert batch_json.from_json(batch_json.to_json(batch(107, None))).prompts is None


def slots(config: Any = None, longest: int = 17, mesh: tuple[int, ...] = (1,), **changes: Any) -> int | None:
    made = spec(**changes)
    context = SimpleNamespace(
        spec=made,
        model=Model(config or model("gemma-2").config),
        mesh=sharding.make_mesh(mesh, jax.devices()[: int(np.prod(mesh))]),
    )
    questions = [Question(range(count), "", {}) for count in (1, longest)]
    return prompt_sharing.prompt_slots(cast(Context, context), questions, SAMPLES)


def test_prompts_are_shared_where_rows_can_be_taken_apart() -> None:
    assert slots() == 16
    assert slots(longest=18) == 24
    assert slots(longest=1) == 16
    assert slots(mesh=(4,)) == 16
    assert slots(training={"microBatchSize": 6}, mesh=(2,)) == 16


@pytest.mark.parametrize(
    "refused",
    [
        {"mesh": (1, 1, 1, 2)},
        {"mesh": (8,)},
        {"training": {"microBatchSize": 4}},
        {"training": {"neftuneAlpha": 5.0}},
        {"training": {"lora": {"rank": 4, "dropout": 0.1}}},
        {"rollout": {"maxNewTokens": 4000}},
        {"config": dataclasses.replace(from_hf(CASES["qwen-3-moe"]))},
        {"config": dataclasses.replace(from_hf(CASES["qwen-3.5"]))},
        {"environment": {"tools": [{"builtin": "calculator"}]}},
    ],
    ids=lambda refused: next(iter(str(refused).split(":"))),
)
def test_prompts_are_not_shared_elsewhere(refused: dict[str, Any]) -> None:
    assert slots(**refused) is None


def test_nothing_but_the_layout_changes_the_dtype() -> None:
    laid = batch(107, 24)
    assert laid.prompts is not None
    assert {np.asarray(x).dtype for x in laid.prompts} == {np.dtype(np.int32)}
    assert jnp.asarray(laid.weight_BT).dtype == jnp.float32
