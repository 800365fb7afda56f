"""CPU time of three parts of a train step on a CPU, both passes: as XLA alone does them, and as posttrain does.

    python benchmarks/trainer/cpu_step.py

- A product with a matrix, whose gradient XLA leaves to Eigen (`pttrainer.runtime.cpu_products`).
- The output head, in chunks of 16 MB of logits, and of at least 128 tokens (`pttrainer.losses.chunk_size`).
- Attention of a causal row, all queries to all keys, and by machine code (`pttrainer.runtime.cpu_kernels`), or part by
  part where there is none.

Float32. Prints milliseconds and their ratio. Machines differ: XLA alone is slow where rows are powers of two wide, and
where others use the host's caches.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from pttrainer.batch import Batch
from pttrainer.losses.chunk_size import CHUNK_ELEMENTS
from pttrainer.losses.chunked_logprobs import Head, token_loss
from pttrainer.models.attention import flash_kernels
from pttrainer.models.attention.dot_product import Scoring, attend_packed, packed_mask
from pttrainer.runtime import cpu_products

MATRICES = ((384, 1024), (1024, 384), (896, 4864), (4864, 896))
HEADS = ((16_384, 384), (151_936, 896), (262_144, 640))
ROWS = ((256,), (1024,), (2048,))
HEAD_SIZE = 64

Pair = tuple[str, Callable[..., Any], Callable[..., Any], tuple[jax.Array, ...]]
"""What is measured, as XLA alone does it, as posttrain does, and the arguments."""


def products(tokens: int, shrink: int) -> Iterator[Pair]:
    """Products of all tokens with a matrix, with the gradients of both."""
    for inputs, outputs in _shrunk(MATRICES, shrink):
        arrays = _numbers((tokens, inputs), (inputs, outputs), (tokens, outputs))
        both = [
            lambda x, w, slope, of=of: jax.grad(lambda x, w: jnp.sum(of(x, w) * slope), argnums=(0, 1))(x, w)
            for of in (jnp.matmul, cpu_products.product)
        ]
        yield f"product with {inputs} x {outputs}", *both, arrays


def heads(tokens: int, shrink: int) -> Iterator[Pair]:
    """The loss of one row of an eighth of the tokens, with the gradients of its hidden states and the head."""
    for words, width in _shrunk(HEADS, shrink):
        arrays = _numbers((1, tokens // 8, width), (words, width))
        fewest = max(1, min(tokens // 8, CHUNK_ELEMENTS // words))
        both = [
            lambda hidden, head, chunk=chunk: jax.grad(_head_loss, argnums=(0, 1))(hidden, head, chunk)
            for chunk in (1 << (fewest.bit_length() - 1), None)
        ]
        yield f"head of {words} x {width}", *both, arrays


def _head_loss(hidden: jax.Array, head: jax.Array, chunk: int | None) -> jax.Array:
    zeros, ones = jnp.zeros(hidden.shape[:2], jnp.int32), jnp.ones(hidden.shape[:2], jnp.int32)
    batch = Batch(zeros, zeros, zeros, ones, ones.astype(jnp.float32), ones.astype(jnp.float32))
    return token_loss(lambda stats, batch: -stats.logps_BT * batch.weight_BT, Head(chunk=chunk), hidden, head, batch)[0]


def attention(tokens: int, shrink: int) -> Iterator[Pair]:
    """Attention of six query heads and two key heads, with its gradients, over rows of each length."""
    for (length,) in _shrunk(ROWS, shrink):
        rows = max(1, tokens // length)
        arrays = _numbers(*((rows, length, heads, HEAD_SIZE) for heads in (6, 2, 2, 6)))
        segments = jnp.ones((rows, length), jnp.int32)
        both = [
            lambda q, k, v, slope, of=of, segments=segments: jax.grad(
                lambda q, k, v: jnp.sum(of(q, k, v, segments) * slope), argnums=(0, 1, 2)
            )(q, k, v)
            for of in (_alone, _chosen)
        ]
        yield f"attention of {rows} x {length}", *both, arrays


def _alone(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
    return attend_packed(q, k, v, packed_mask(segments), SCORING)


def _chosen(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
    kernel = flash_kernels.choose_kernel(flash_kernels.problem_of(q, k.shape[2], SCORING))
    if kernel == "plain":
        return attend_packed(q, k, v, packed_mask(segments), SCORING, is_causal=True)
    return flash_kernels.attend(kernel, q, k, v, segments, None, SCORING)


SCORING = Scoring(HEAD_SIZE**-0.5)
PARTS = {"products": products, "heads": heads, "attention": attention}


def cpu_seconds(function: Callable[..., Any], arrays: tuple[jax.Array, ...], runs: int) -> float:
    """Return the least CPU time of a call, compiled before."""
    compiled = jax.jit(function).lower(*arrays).compile()
    jax.block_until_ready(compiled(*arrays))
    return min(_measured(compiled, arrays) for _ in range(runs))


def _measured(function: Callable[..., Any], arrays: tuple[jax.Array, ...]) -> float:
    began = time.process_time()
    jax.block_until_ready(function(*arrays))
    return time.process_time() - began


def _shrunk(sizes: tuple[tuple[int, ...], ...], by: int) -> Iterator[tuple[int, ...]]:
    return (tuple(max(1, size // by) for size in each) for each in sizes)


def _numbers(*shapes: tuple[int, ...]) -> tuple[jax.Array, ...]:
    return tuple(jax.random.normal(jax.random.key(at), shape) for at, shape in enumerate(shapes))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048, help="of a batch, a power of two")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--shrink", type=int, default=1, metavar="N", help="an Nth of all widths, words and lengths")
    parser.add_argument("--only", choices=sorted(PARTS))
    options = parser.parse_args()
    print(f"{'CPU-milliseconds':<28}{'XLA alone':>12}{'posttrain':>12}{'ratio':>8}")
    for part, pairs in PARTS.items():
        if options.only in (None, part):
            for name, alone, ours, arrays in pairs(options.tokens, options.shrink):
                first, second = (cpu_seconds(of, arrays, options.runs) for of in (alone, ours))
                print(f"{name:<28}{1e3 * first:>12.1f}{1e3 * second:>12.1f}{second / first:>8.2f}", flush=True)
