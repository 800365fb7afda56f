"""FLOPs of a step, against hand-counted ones."""

import numpy as np
import pytest

from pttrainer.batch import Batch
from pttrainer.models import ModelConfig
from pttrainer.models.config import Chunk, Experts
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.shapes import flops

SIZES = {"vocab_size": 11, "d_model": 4, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 6, "d_ff": 5}
DENSE = ModelConfig("llama", **SIZES)  # type: ignore[arg-type]


def batch(segments: list[list[int]], mask: list[list[int]] | None = None) -> Batch:
    ids = np.array(segments, np.int32)
    counts = np.array(mask, np.float32) if mask is not None else (ids > 0).astype(np.float32)
    return Batch(ids, ids, ids, ids, counts, counts)


def test_a_dense_model_by_hand() -> None:
    # One example of 3 tokens, 2 of them learned. A layer: q 4·12, k and v 4·6 each, o 12·4, MLP 3·4·5: 204 weights.
    weights = 2 * 3 * 2 * 204 + 2 * 2 * 11 * 4
    pairs = 2 * (1 + 2 + 3)  # layers
    assert flops.batch_flops(DENSE, None, batch([[1, 1, 1, 0]], [[1, 1, 0, 0]])) == 3 * weights + 3 * 4 * 2 * 6 * pairs


def test_packed_examples_do_not_see_each_other() -> None:
    assert list(flops.example_lengths(np.array([[1, 1, 2, 0], [1, 1, 1, 1]]))) == [2, 1, 4]
    assert flops.visible_pairs(np.array([2, 1, 4]), None) == 3 + 1 + 10


@pytest.mark.parametrize(("length", "window"), [(5, 2), (5, 5), (5, 9), (1, 1), (100, 7)])
def test_a_window_limits_what_is_seen(length: int, window: int) -> None:
    assert flops.visible_pairs(np.array([length]), window) == sum(min(t + 1, window) for t in range(length))
    assert flops.visible_pairs(np.array([length]), Chunk(window)) == sum(t % window + 1 for t in range(length))


def test_only_local_layers_have_the_window() -> None:
    windowed = ModelConfig("gemma2", **SIZES, window=2, local_layers=(True, False))  # type: ignore[arg-type]
    one = batch([[1, 1, 1]])
    assert flops.attention(windowed, lambda window: flops.pairs(one, window)) == 4 * 12 * ((1 + 2 + 2) + (1 + 2 + 3))


def test_adapters_save_the_gradients_of_frozen_weights() -> None:
    adapters = Adapters(2, 4.0, ("q", "down"))
    one = batch([[1, 1, 1, 0]])
    weights = 2 * 3 * 2 * 204 + 2 * 3 * 11 * 4
    of_adapters = 2 * 3 * 2 * (2 * (4 + 12) + 2 * (5 + 4))
    attention = 4 * 12 * 2 * 6
    assert flops.batch_flops(DENSE, adapters, one) == 2 * weights + 3 * of_adapters + 3 * attention


def test_of_experts_only_the_chosen_count() -> None:
    experts = ModelConfig("qwen3_moe", **SIZES, experts=Experts(7, 2, 3))  # type: ignore[arg-type]
    assert flops.active_weights(experts) == 144 + 4 * 7 + 2 * 3 * 4 * 3


def test_layers_with_and_without_experts_count_as_what_they_are() -> None:
    mixed = ModelConfig("qwen3_moe", **SIZES, experts=Experts(7, 2, 3), dense_layers=(True, False))  # type: ignore[arg-type]
    assert flops.stack_weights(mixed) == (144 + 3 * 4 * 5) + (144 + 4 * 7 + 2 * 3 * 4 * 3)


def test_an_expert_that_all_tokens_use_counts_once_with_its_gate() -> None:
    shared = ModelConfig("glm4_moe", **SIZES, experts=Experts(7, 2, 3, shared_d_ff=9, shared_gated=True))  # type: ignore[arg-type]
    assert flops.active_weights(shared) == 144 + 4 * 7 + 2 * 3 * 4 * 3 + 3 * 4 * 9 + 4
    assert flops.adapter_weights(shared, Adapters(5, 4.0, ("shared_gate", "shared_down"))) == 5 * 2 * (4 + 9)


def test_of_adapters_on_experts_the_chosen_count_and_the_routers() -> None:
    experts = ModelConfig("qwen3_moe", **SIZES, experts=Experts(7, 2, 3))  # type: ignore[arg-type]
    weights = flops.adapter_weights(experts, Adapters(5, 4.0, ("q", "router", "gate", "up", "down")))
    assert weights == 5 * ((4 + 12) + (4 + 7) + 3 * 2 * (4 + 3))


def test_padding_costs_nothing() -> None:
    assert flops.batch_flops(DENSE, None, batch([[1, 1, 0, 0], [0, 0, 0, 0]])) == flops.batch_flops(
        DENSE, None, batch([[1, 1]])
    )
