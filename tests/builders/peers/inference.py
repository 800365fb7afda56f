"""Our decoder on a checkpoint directory: logits of rows, and greedy continuation through the cache.

One forward pass holds a row of every kind (plain, padded on the left, packed), so that a family costs a test two
compilations.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from tests.builders.peers.models import LENGTH

from pttrainer.batch import Images
from pttrainer.models import Model, Params, from_hf, to_hf
from pttrainer.models.attention import kv_cache as kv
from pttrainer.models.weights.hf_names import in_files
from pttrainer.models.weights.load_weights import load
from pttrainer.models.weights.save_weights import save

T = TypeVar("T")


def load_model(directory: Path) -> tuple[Model, Params]:
    """The model of a directory in Hugging Face's layout, in float32 on one device, for sequences of LENGTH tokens."""
    model = Model(from_hf(json.loads((directory / "config.json").read_text())).at_length(LENGTH))
    abstract = model.abstract()
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return model, load(model.config, directory, abstract, jax.tree.map(lambda _: here, abstract))


def plain(tokens: np.ndarray, length: int) -> tuple[np.ndarray, ...]:
    """tokens, positions, segments of a row of this length: the example at its start, padding behind."""
    return _row([(0, tokens)], length)


def left_padded(tokens: np.ndarray, length: int) -> tuple[np.ndarray, ...]:
    """The example at the row's end, padding before it."""
    return _row([(length - len(tokens), tokens)], length)


def packed(examples: Sequence[np.ndarray], length: int) -> tuple[np.ndarray, ...]:
    """Examples one behind the other, padding behind the last."""
    starts = np.cumsum([0, *(len(example) for example in examples[:-1])])
    return _row(list(zip(starts, examples, strict=True)), length)


def forward(model: Model, params: Params, rows: Sequence[tuple[np.ndarray, ...]]) -> np.ndarray:
    """Logits [rows, length, V], float32."""
    tokens_BT, positions_BT, segments_BT = (np.stack(parts) for parts in zip(*rows, strict=True))

    @jax.jit
    def compute(params: Params) -> jax.Array:
        return model.logits(params, model.forward(params, tokens_BT, positions_BT, segments_BT))

    return np.asarray(compute(params))


def packed_and_alone(
    model: Model,
    params: Params,
    examples: Sequence[tuple[np.ndarray, Sequence[T]]],
    images_of: Callable[[np.ndarray, list[Sequence[T]]], Images],
) -> tuple[list[np.ndarray], np.ndarray]:
    """Logits of each example, tokens and pictures, in a row of its own, and of all of them in one row."""
    tokens, of_rows = zip(*examples, strict=True)
    length = sum(map(len, tokens))
    rows = [packed(tokens, length), *(plain(row, length) for row in tokens)]
    tokens_BT, positions_BT, segments_BT = map(np.stack, zip(*rows, strict=True))
    images = images_of(tokens_BT, [[each for of_row in of_rows for each in of_row], *of_rows])
    compute = jax.jit(lambda p: model.logits(p, model.forward(p, tokens_BT, positions_BT, segments_BT, images=images)))
    packed_TV, *alone = np.asarray(compute(params))
    return [of_row[: len(row)] for of_row, row in zip(alone, tokens, strict=True)], packed_TV


def greedy(model: Model, params: Params, prompts: Sequence[np.ndarray], steps: int) -> np.ndarray:
    """The likeliest `steps` tokens after each prompt, [prompts, steps]. Two samples share each prompt; they must agree.
    Half-way the cache grows."""
    lengths = np.array([len(prompt) for prompt in prompts])
    tokens_PS = np.zeros((len(prompts), lengths.max()), np.int32)
    for row, prompt in enumerate(prompts):
        tokens_PS[row, : len(prompt)] = prompt
    positions_PS = np.where(np.arange(lengths.max()) < lengths[:, None], np.arange(lengths.max()), kv.EMPTY)
    starts_B = np.repeat(lengths, 2)
    half = steps // 2

    @jax.jit
    def generate(params: Params) -> jax.Array:
        weights = model.for_decoding(params)
        prompt_cache = kv.empty(model.config, *tokens_PS.shape, model.compute_dtype)
        hidden_PSD, prompt_cache = model.decode(weights, tokens_PS, positions_PS, prompt_cache)
        last_PD = hidden_PSD[np.arange(len(prompts)), lengths - 1]
        first_B = jnp.repeat(likeliest(weights, last_PD[:, None]), 2)
        cache = kv.share(model.config, prompt_cache, 2, half)

        def step(carry: tuple[kv.KVCache, jax.Array], t: jax.Array) -> tuple[tuple[kv.KVCache, jax.Array], jax.Array]:
            cache, token_B = carry
            hidden, cache = model.decode(weights, token_B[:, None], (starts_B + t)[:, None], cache)
            return (cache, likeliest(weights, hidden)), token_B

        carry, early = jax.lax.scan(step, (cache, first_B), jnp.arange(half))
        carry = (kv.grow(carry[0], steps), carry[1])
        _, late = jax.lax.scan(step, carry, jnp.arange(half, steps))
        return jnp.concatenate([early, late]).T

    def likeliest(weights: Params, hidden_B1D: jax.Array) -> jax.Array:
        return jnp.argmax(model.logits(weights, hidden_B1D)[:, -1], axis=-1).astype(jnp.int32)

    both = np.asarray(generate(params)).reshape(len(prompts), 2, steps)
    assert (both[:, 0] == both[:, 1]).all(), "samples that share a prompt differ"
    return both[:, 0]


def _row(examples: list[tuple[int, np.ndarray]], length: int) -> tuple[np.ndarray, ...]:
    tokens, positions, segments = (np.zeros(length, np.int32) for _ in range(3))
    for number, (start, example) in enumerate(examples, start=1):
        here = slice(start, start + len(example))
        tokens[here], positions[here], segments[here] = example, np.arange(len(example)), number
    return tokens, positions, segments


def export(model: Model, params: Params, directory: Path) -> None:
    """Weights and `config.json` as `transformers` reads them."""
    save(in_files(model.config), model.merged(params), directory)
    (directory / "config.json").write_text(json.dumps(to_hf(model.config)))
