"""How keys and values stand in the cache, and that a token's attention reads them so."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.peers.models import CASES, tokens

from pttrainer.models import Model, from_hf
from pttrainer.models.attention import kv_cache as kv
from pttrainer.models.attention.dot_product import Scoring, attend_cached
from pttrainer.models.families.presets import preset

ROWS, KEY_HEADS, SLOTS, SIZE = 3, 2, 32, 16


def test_products_read_keys_and_values_as_they_stand() -> None:
    """A product whose summed axis is the last one of keys would have a CPU turn them all, at every token."""
    cache = kv.empty(preset("tiny"), ROWS, SLOTS, "float32")
    q_BTNH, mask_BTS = jnp.zeros((ROWS, 1, 4, SIZE)), jnp.ones((ROWS, 1, SLOTS), bool)
    program = jax.make_jaxpr(partial(attend_cached, scoring=Scoring(1.0)))(q_BTNH, cache.layers[0], mask_BTS)
    stored = set(program.jaxpr.invars[1:3])
    read = [eqn for eqn in program.jaxpr.eqns if stored & {x for x in eqn.invars if not hasattr(x, "val")}]
    assert [eqn.primitive.name for eqn in read] == ["dot_general"] * 2
    assert [eqn.params["dimension_numbers"][0][1] for eqn in read] == [(2,)] * 2


@pytest.mark.parametrize("is_apart", [False, True])
def test_what_is_written_is_found_in_its_slots_and_stays_when_the_cache_grows(is_apart: bool) -> None:
    random = np.random.default_rng(0)
    k_BTKH, v_BTKH = (jnp.asarray(random.standard_normal((ROWS, 5, KEY_HEADS, SIZE)), jnp.float32) for _ in range(2))
    cache = kv.empty(preset("tiny"), ROWS, 8, "float32")
    cache = kv.with_row_clocks(cache) if is_apart else cache
    slot, positions_BT = kv.slot_of_next(cache), jnp.broadcast_to(jnp.arange(5), (ROWS, 5))
    written = kv.write(cache.layers[0], k_BTKH, v_BTKH, slot)
    cache = kv.write_positions(cache._replace(layers=(written,)), positions_BT)
    for stored in (cache, kv.grow(cache, 24)):
        k_BKHS, v_BKSH = stored.layers[0]
        np.testing.assert_array_equal(k_BKHS[..., :5], k_BTKH.transpose(0, 2, 3, 1))
        np.testing.assert_array_equal(v_BKSH[:, :, :5], v_BTKH.transpose(0, 2, 1, 3))
        np.testing.assert_array_equal(stored.positions_BS[:, :5], positions_BT)
        assert (stored.positions_BS[:, 5:] == kv.EMPTY).all()


def test_a_row_that_is_taken_over_continues_with_its_new_prompts_state() -> None:
    """A layer with a delta rule, one with attention: the row reads its new prompt alone, the others notice nothing."""
    model = Model(from_hf(CASES["qwen-3.5"]).first_layers(2))
    weights = model.for_decoding(jax.jit(model.init)(jax.random.key(0)))
    tokens_PS, starts_B, decode = tokens(CASES["qwen-3.5"], 3, 9), np.full(3, 9), jax.jit(model.decode)
    positions_PS = np.broadcast_to(np.arange(9), (3, 9))
    _, prompts = decode(weights, tokens_PS, positions_PS, kv.empty(model.config, 3, 9, "float32"))

    def continued(cache: kv.KVCache, starts_B: np.ndarray, steps: int) -> tuple[kv.KVCache, np.ndarray]:
        hidden = []
        for position_B in (starts_B + step for step in range(steps)):  # a token for each position
            hidden_B1D, cache = decode(weights, position_B[:, None].astype(np.int32), position_B[:, None], cache)
            hidden.append(hidden_B1D)
        return cache, np.stack(hidden)

    cache, before = continued(kv.share(model.config, prompts, 1, 16), starts_B, 3)
    _, undisturbed = continued(cache, starts_B + 3, 4)
    taken = jax.jit(kv.replace_row)(cache, jnp.int32(1), prompts, jnp.int32(2))
    _, mixed = continued(taken, starts_B + np.array([3, 0, 3]), 4)
    alone = np.concatenate([before, undisturbed])[:4, 2]
    np.testing.assert_allclose(mixed[:, 1], alone, atol=1e-5)
    np.testing.assert_allclose(mixed[:, [0, 2]], undisturbed[:, [0, 2]], atol=1e-5)
    assert np.abs(mixed[:, 1] - undisturbed[:, 1]).max() > 0.01
