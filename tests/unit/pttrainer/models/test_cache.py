"""How keys and values stand in the cache, and that a token's attention reads them so."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
