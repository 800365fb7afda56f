"""Tokens drawn from a vocabulary that devices share, or without gathers as on a TPU, are those of one device."""

import re
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from pttrainer.rollout.engine import Sampling
from pttrainer.rollout.native import token_sampling
from pttrainer.rollout.native.token_sampling import choose
from pttrainer.runtime.distributed import sharding

B, V = 8, 4 * 300
"""A part of four is no multiple of a block's 128 tokens."""
WAYS = [
    Sampling(8, 64), Sampling(8, 64, temperature=0.5), Sampling(8, 64, greedy=True), Sampling(8, 64, top_k=5),
    Sampling(8, 64, top_p=0.5), Sampling(8, 64, min_p=0.05),
]  # fmt: skip
NAMES = ["plain", "cooled", "greedy", "top k", "top p", "min p"]


def drawn_from(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    logits, uniform = random.normal(size=(B, V)) * 3, random.uniform(size=B)
    allowed = np.where(random.uniform(size=(B, V)) < 0.5, -np.inf, logits)
    return logits.astype(np.float32), uniform.astype(np.float32), allowed.astype(np.float32)


def jitted(how: Sampling) -> Any:
    return jax.jit(lambda logits, uniform, allowed=None: choose(logits, uniform, how, allowed))


@pytest.mark.parametrize("are_forbidden", [False, True], ids=["all", "some forbidden"])
@pytest.mark.parametrize("how", WAYS, ids=NAMES)
def test_devices_that_share_the_vocabulary_draw_what_one_draws(how: Sampling, are_forbidden: bool) -> None:
    mesh = sharding.make_mesh((1, 2, 4), jax.devices()[:8])
    where = NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))
    for seed in range(3):
        logits, uniform, allowed = drawn_from(seed)
        given = (allowed,) if are_forbidden else ()
        tokens, logps = jitted(how)(logits, uniform, *given)
        with jax.set_mesh(mesh):
            shared = [jax.device_put(x, where) for x in (logits, *given)]
            ours, theirs = jitted(how)(shared[0], uniform, *shared[1:])
        np.testing.assert_array_equal(ours, tokens)
        np.testing.assert_allclose(theirs, logps, atol=1e-5)


@pytest.mark.parametrize("how", WAYS, ids=NAMES)
def test_a_tpu_draws_the_same_tokens_without_gathers(how: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, uniform, allowed = drawn_from()
    wanted = [jitted(how)(logits, uniform, *given) for given in ((), (allowed,))]
    monkeypatch.setattr(sharding, "chip", lambda: ("tpu", "TPU v6 lite"))
    for given, (tokens, logps) in zip(((), (allowed,)), wanted, strict=True):
        ours, theirs = jitted(how)(logits, uniform, *given)
        np.testing.assert_array_equal(ours, tokens)
        np.testing.assert_allclose(theirs, logps, atol=1e-5)


def test_the_last_token_of_every_part_can_be_drawn() -> None:
    """Behind it a part is filled up, with what is never drawn."""
    mesh = sharding.make_mesh((1, 1, 4), jax.devices()[:4])
    for token in (0, 299, 300, 599, 899, V - 1):
        logits = np.full((B, V), -50.0, np.float32)
        logits[:, token] = 50.0
        with jax.set_mesh(mesh):
            tokens, logps = jitted(WAYS[0])(logits, drawn_from()[1])
        assert set(np.asarray(tokens).tolist()) == {token}
        np.testing.assert_allclose(logps, 0.0, atol=1e-5)


@pytest.mark.parametrize("how", [WAYS[0], WAYS[2]], ids=["plain", "greedy"])
def test_no_device_is_sent_the_others_logits(how: Sampling) -> None:
    """Sums of blocks are, one for each 128 logits, and one block of each row."""
    mesh = sharding.make_mesh((1, 1, 4), jax.devices()[:4])
    where = NamedSharding(mesh, PartitionSpec(None, "tensor"))
    many = 4 * 37984  # Qwen's; a part is no multiple of a block
    with jax.set_mesh(mesh):
        logits = jax.ShapeDtypeStruct((B, many), np.float32, sharding=where)
        text = jitted(how).lower(logits, np.zeros(B, np.float32)).compile().as_text()
    sent = re.findall(r"= \(?([^=]*?)\)? (?:all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\(", text)
    sizes = [
        int(np.prod([int(n) for n in dims.split(",") if n]))
        for one in sent
        for dims in re.findall(r"\[([\d,]*)\]", one)
    ]
    assert sizes
    assert max(sizes) <= B * (many // token_sampling.BLOCK + 4)
