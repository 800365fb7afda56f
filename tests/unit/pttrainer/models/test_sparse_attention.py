"""Sparse attention: what an indexer chooses, the same in packed rows and over a cache; and what it costs."""

import jax
import jax.numpy as jnp
import numpy as np
from tests.builders.peers.models import CASES, KEEP

from ptapi.spec import Training
from pttrainer.models import Model, Params, from_hf
from pttrainer.models.attention import sparse_selection
from pttrainer.models.attention.sparse_selection import Queries
from pttrainer.models.shapes import flops, parameters
from pttrainer.models.shapes.structure import Remat
from pttrainer.train_step.optimizer import freeze_patterns

B, T, HEADS, E, FEW = 2, 12, 3, 5, 4


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


QUERIES = Queries(jnp.asarray(numbers(0, B, T, HEADS, E)), jnp.asarray(numbers(1, B, T, HEADS)))
KEYS = numbers(2, B, T, E)
CAUSAL = np.broadcast_to(np.tril(np.ones((T, T), bool)), (B, T, T))


def by_hand() -> np.ndarray:
    """[B, T, T], one score after the other."""
    chosen = np.zeros((B, T, T), bool)
    for b, t in np.ndindex(B, T):
        scores = [
            sum(QUERIES.weights_BTI[b, t, i] * max(0.0, QUERIES.q_BTIE[b, t, i] @ KEYS[b, s]) for i in range(HEADS))
            for s in range(t + 1)
        ]
        lowest = sorted(scores, reverse=True)[:FEW][-1]
        chosen[b, t, : t + 1] = np.array(scores) >= lowest - 1e-6
    return chosen


def test_the_highest_scores_of_visible_tokens_are_seen() -> None:
    chosen = np.asarray(sparse_selection.packed(QUERIES, jnp.asarray(KEYS), jnp.asarray(CAUSAL), FEW))
    np.testing.assert_array_equal(chosen, by_hand())
    assert (chosen.sum(-1) >= np.minimum(np.arange(T) + 1, FEW)).all()
    assert not (chosen & ~CAUSAL).any()


def test_a_prompt_that_rows_share_is_chosen_from_together_with_their_own_tokens() -> None:
    """One prompt of 7 tokens, two rows behind it: as each row alone chooses from all of its tokens."""
    shared, own = KEYS[:1, :7], KEYS[:, 7:]
    whole = np.concatenate([np.repeat(shared, B, axis=0), own], axis=1)
    late = Queries(QUERIES.q_BTIE[:, 7:], QUERIES.weights_BTI[:, 7:])
    wanted = sparse_selection.highest(
        sparse_selection.scores(late, jnp.asarray(whole.swapaxes(1, 2))), jnp.asarray(CAUSAL[:, 7:]), FEW
    )
    parts = [(jnp.asarray(keys.swapaxes(1, 2)), jnp.asarray(mask)) for keys, mask in
             ((own, CAUSAL[:, 7:, 7:]), (shared, CAUSAL[:, 7:, :7]))]  # fmt: skip
    of_own, of_prompt = sparse_selection.cached(late, parts[0], parts[1], FEW)
    assert of_prompt is not None
    np.testing.assert_array_equal(np.concatenate([of_prompt, of_own], axis=-1), wanted)


def test_an_indexer_is_never_trained() -> None:
    config = from_hf(CASES["glm-5"])
    frozen = freeze_patterns.fully_frozen(freeze_patterns.patterns_of(Training(), config), config)
    indexers = {path for path in parameters.decoder(config) if "indexer" in path}
    assert len(indexers) == 5 * len(config.groups)
    assert frozen == indexers


def test_a_choice_that_layers_share_is_made_and_stored_once() -> None:
    shared, alone = from_hf(CASES["glm-5.1"]), from_hf(CASES["glm-5.1"] | {"index_topk_pattern": None})
    assert flops.indexers(shared, 40, lambda _: 820) == 2 / 4 * flops.indexers(alone, 40, lambda _: 820)
    assert flops.attention(shared, lambda _: 820) == flops.attention(alone, lambda _: 820)
    assert [group.config.cached[1] for group, _ in shared.layer_places] == [38, 28, 28, 38]
    assert sum("indexer" in path for path in parameters.decoder(shared)) == 5 * 2


def test_gradients_pass_layers_that_share_a_choice() -> None:
    """Of one loop over both kinds of layers; what is computed again for the backward pass changes nothing."""
    raw = CASES["glm-5.1"] | {"first_k_dense_replace": 4, "index_topk_pattern": "FSFS"}
    config = from_hf(raw)
    assert len(config.scans) == 1
    shapes = Model(config).abstract()
    params = jax.tree.map(lambda leaf: jnp.asarray(0.3 * numbers(leaf.size, *leaf.shape)), shapes)
    rows = jnp.arange(B * T).reshape(B, T), jnp.tile(jnp.arange(T), (B, 1)), jnp.ones((B, T), jnp.int32)

    def gradients(remat: Remat) -> Params:
        model = Model(config, remat=remat)
        computed: Params = jax.jit(jax.grad(lambda params: jnp.mean(model.forward(params, *rows) ** 3)))(params)
        return computed

    kept, again = gradients("none"), gradients("full")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), kept, again)
    assert min(np.abs(kept[group.name]["attention"]["kv_up"]).max() for group in config.groups) > 1e-3


def test_flops_count_what_is_seen_and_the_choice_once() -> None:
    config = from_hf(CASES["deepseek-v3.2"])
    assert config.latent is not None
    assert config.latent.indexer is not None
    tokens = 40

    def pairs(window: object) -> int:
        assert window is None or isinstance(window, int)
        return flops.visible(tokens, window)

    pairs_left = flops.visible(tokens, KEEP)
    assert flops.attention(config, pairs) == 2 * 3 * 6 * (17 + 9) * pairs_left
    matrices = 22 * 9 * 14 + 42 * 14 + 42 * 9
    assert flops.indexers(config, tokens, pairs) == 3 * (
        2 * tokens * matrices + 2 * 9 * 15 * flops.visible(tokens, None)
    )
