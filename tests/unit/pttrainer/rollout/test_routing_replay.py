"""Routing replay: the sampler's experts reach scoring and training, and a token's log-prob is then the sampler's.

The sampler computes in bfloat16 and the trainer in float32: so routers near a tie choose differently, as with two
programs on the same chips.
"""

import dataclasses
import json
from collections.abc import Sequence
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.trainer import specs

from pttrainer.algorithms import ppo
from pttrainer.batch import Batch
from pttrainer.checkpoint import batch_json
from pttrainer.data.prompts import Question
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.losses.chunked_logprobs import token_stats
from pttrainer.models import Model, Params, preset
from pttrainer.models.config import Experts, ModelConfig
from pttrainer.preflight.shapes.job_shapes import shapes_of
from pttrainer.rollout import groups
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.rollout.speculative.prompt_lookup import Ngram
from pttrainer.rollout.speculative.verify import Speculation

EXPERTS = Experts(count=32, per_token=4, d_ff=32)
PLAIN = dataclasses.replace(preset("tiny-moe"), layers=3, tied_head=False, experts=EXPERTS)
OF_GROUPS = dataclasses.replace(EXPERTS, sigmoid=True, corrected=True, groups=4, groups_used=2)
GROUPED = dataclasses.replace(PLAIN, family="glm4_moe", experts=OF_GROUPS, dense_layers=(True, False, False))
PROMPTS = [Prompt([256, 259, *b"one"], 0), Prompt([256, 259, *b"two and more"], 1), Prompt([256, *b"3"], 2)]
SAMPLING = Sampling(max_new_tokens=24, max_length=64, routes=True)
SAMPLES = 4


@lru_cache
def weights(config: ModelConfig) -> Params:
    """Random weights, larger in experts and head, so that it matters which experts are used."""
    params = jax.jit(Model(config).init)(jax.random.key(1))
    larger: Params = jax.tree_util.tree_map_with_path(
        lambda path, x: x * 6.0 if path[-1].key in ("down", "head") else x, params
    )
    return larger


def generate(
    config: ModelConfig, prompts: Sequence[Prompt] = PROMPTS, samples: int = SAMPLES, dtype: str = "float32", **how: Any
) -> Completions:
    engine = NativeEngine(Model(config, compute_dtype=dtype), byte_tokenizer(), **how)
    return engine.generate(weights(config), prompts, samples, SAMPLING, Draw(7, 3))


def batch_of(done: Completions) -> Batch:
    scores = SimpleNamespace(rewards={}, total=np.zeros(len(PROMPTS) * SAMPLES))
    samples = groups.samples_of(done, [""] * len(PROMPTS) * SAMPLES, scores)
    questions = [Question(list(prompt.tokens), "", {}) for prompt in PROMPTS]
    laid = groups.grouped(questions, samples, SAMPLES, [None] * len(PROMPTS))
    return groups.lay_out(laid, np.zeros((len(PROMPTS), SAMPLES)), 0, 64)


def logps(config: ModelConfig, params: Params, batch: Batch, routes_BTLk: Any) -> jax.Array:
    """The trainer's log-probs of a batch's targets."""
    rows = (jnp.asarray(x) for x in (batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT))
    hidden_BTD = Model(config).forward(params, *rows, routes_BTLk=routes_BTLk)
    head_VD = Model(config).head(params)
    return token_stats(hidden_BTD, head_VD, jnp.asarray(batch.targets_BT), jnp.asarray(batch.mask_BT)).logps_BT


@pytest.mark.parametrize("config", [PLAIN, GROUPED], ids=["softmax", "sigmoid, groups, a dense layer"])
def test_replayed_experts_close_the_gap_between_sampler_and_trainer(config: ModelConfig) -> None:
    batch = batch_of(generate(config, dtype="bfloat16"))
    trainer = jax.jit(partial(logps, config, weights(config), batch))
    own, replayed = (
        np.abs(np.asarray(trainer(routes)) - batch.sampler_logps_BT)[np.asarray(batch.mask_BT) > 0]
        for routes in (np.full_like(batch.routes_BTLk, 255), batch.routes_BTLk)
    )
    assert own.max() > 0.5
    assert replayed.max() < 0.15
    assert replayed.mean() < own.mean() / 1.5


def test_routers_still_learn_by_the_weights_of_experts_that_are_given() -> None:
    batch = batch_of(generate(PLAIN))

    def loss(params: Params) -> jax.Array:
        return jnp.sum(logps(PLAIN, params, batch, batch.routes_BTLk) * batch.mask_BT)

    router = jax.jit(jax.grad(loss))(weights(PLAIN))["layers"]["mlp"]["router"]
    assert (jnp.max(jnp.abs(router), axis=(1, 2)) > 0).all()


def test_tokens_whose_experts_are_unknown_go_where_their_router_sends_them() -> None:
    batch = batch_of(generate(PLAIN))
    unknown = np.full_like(batch.routes_BTLk, EXPERTS.unknown_number)
    of = partial(logps, PLAIN, weights(PLAIN), batch)
    np.testing.assert_allclose(jax.jit(of)(unknown), jax.jit(lambda: of(None))(), atol=1e-5)
    known = np.asarray(batch.segment_ids_BT) > 0
    assert (np.asarray(batch.routes_BTLk)[known] < EXPERTS.count).all()


def test_the_share_of_experts_that_routers_would_not_choose_is_counted() -> None:
    batch = batch_of(generate(PLAIN))
    rows = batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT
    changed = np.array(batch.routes_BTLk)
    changed[:, :, 1, 0] = (changed[:, :, 1].max(axis=-1) + 1) % EXPERTS.count
    count = jax.jit(lambda routes: Model(PLAIN).forward_with_use(weights(PLAIN), *rows, routes_BTLk=routes)[1])
    own, other = count(batch.routes_BTLk), count(changed)
    tokens = np.asarray(batch.segment_ids_BT).sum()
    np.testing.assert_allclose(own.changed, 0.0, atol=1e-3)
    assert 0.2 * tokens < other.changed[1] <= 0.25 * tokens
    np.testing.assert_allclose(other.tokens, tokens)


@pytest.mark.parametrize(
    "how",
    [{"rows": 5}, {"speculation": Speculation(Ngram(3, 4))}],
    ids=["rows are taken over", "tokens are proposed"],
)
def test_a_samples_experts_are_the_same_however_it_is_sampled(how: dict[str, Any]) -> None:
    together, other = generate(PLAIN), generate(PLAIN, **how)
    for row in range(len(PROMPTS) * SAMPLES):
        assert other.tokens(row) == together.tokens(row)
        routes = other.routes_of(row)
        assert routes is not None
        assert routes.dtype == np.uint8
        assert routes.shape == (len(PROMPTS[row // SAMPLES].tokens) + len(other.tokens(row)) - 1, 3, 4)
        np.testing.assert_array_equal(routes, together.routes_of(row))


def test_a_token_of_an_episode_keeps_the_experts_of_the_pass_that_first_computed_it() -> None:
    first = generate(PLAIN, PROMPTS[:1], 1)
    known = first.routes_of(0)
    assert known is not None
    ids = [*PROMPTS[0].tokens, *first.tokens(0), *b" and then"]
    second = generate(PLAIN, [Prompt(ids, 0)], 1)
    wrong = np.zeros_like(known)
    joined = second.routes_of(0, wrong)
    assert joined is not None
    assert len(joined) == len(ids) + len(second.tokens(0)) - 1
    np.testing.assert_array_equal(joined[: len(known)], wrong)
    np.testing.assert_array_equal(joined[len(known) :], second.routes_of(0)[len(known) :])


def test_the_last_token_that_ppo_adds_goes_where_its_router_sends_it() -> None:
    batch = batch_of(generate(PLAIN))
    wider = ppo.with_last_token(batch)
    width = batch.tokens_BT.shape[1]
    np.testing.assert_array_equal(wider.routes_BTLk[:, :width], batch.routes_BTLk)
    assert (wider.routes_BTLk[:, width:] == EXPERTS.unknown_number).all()


def test_a_checkpoint_and_preflight_know_the_experts_of_a_batch() -> None:
    batch = batch_of(generate(PLAIN))
    kept = batch_json.from_json(json.loads(json.dumps(batch_json.to_json(batch))))
    np.testing.assert_array_equal(kept.routes_BTLk, batch.routes_BTLk)
    spec = specs.tiny(
        {"grpo": {}}, model={"uri": "random://tiny-moe"}, rollout={"max_new_tokens": 8, "routing_replay": True}
    )
    shares = {name: share for (name, *_), share in shapes_of(spec).arguments.batch}
    assert shares["routes_BTLk"].bytes == 4 * 64 * 2 * 2
