"""Samples in flight over weight updates against lock step, where lengths have a long tail: what a sampled token costs.

A step in lock step waits for its longest sample while most rows are idle; in flight it takes the groups that are
complete (`rollout.inFlightUpdates`). Both have as many rows, the same weights throughout, prompts and keys, so they
sample the same completions. Lengths are geometric: every token ends its sample with the same chance, cut at the limit.

Passes are decoding passes of the model, which cost about the same whatever rows are idle, and so stand for time on a
chip; what samples in flight compute anew at each update is in the CPU seconds alone. The first batches of each way are
left out: they fill what is in flight. All is done twice, because the first time compiles.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from typing import Any

from pttrainer.commands import huge_pages
from pttrainer.runtime.distributed.processes import initialize, prepare_environment

WARM = 3
"""Batches that are not counted."""


def main() -> None:
    options = _arguments()
    prepare_environment("cpu-1", {})
    import jax  # after the environment that it reads
    import numpy as np

    from pttrainer.data.prompts import Question
    from pttrainer.data.tokenization.tokenizer import byte_tokenizer
    from pttrainer.models import Model, preset
    from pttrainer.rollout.disaggregated.in_flight import rows, unfinished
    from pttrainer.rollout.engine import Draw, Prompt, Sampling
    from pttrainer.rollout.native.native_engine import NativeEngine

    initialize()
    model = Model(preset(options.model))
    params = jax.jit(model.init)(jax.random.key(0))  # nearly uniform over tokens
    ends = model.config.vocab_size // options.mean
    tokenizer = dataclasses.replace(byte_tokenizer(), eos_ids=tuple(range(ends)))
    passes = [0]

    def fetch(tree: Any) -> Any:
        fetched = jax.device_get(tree)
        passes[0] += int(fetched[0].count)
        return fetched

    P, G = options.prompts, options.samples
    engine = NativeEngine(model, tokenizer, fetch=fetch, rows=P * G)
    sampling = Sampling(options.new_tokens, options.new_tokens + options.prompt_tokens)
    drawn = (
        np.random.default_rng(0).integers(0, 256, ((options.batches + WARM + 2) * P, options.prompt_tokens)).tolist()
    )
    in_flight: list[unfinished.UnfinishedGroup] = []
    begun = [0]

    def lock_step(step: int) -> int:
        prompts = [Prompt(drawn[n], n) for n in range(step * P, (step + 1) * P)]
        return int(engine.generate(params, prompts, G, sampling, Draw(0, 0)).lengths_N.sum())

    def flying(step: int) -> int:
        while len(in_flight) < 2 * P:
            in_flight.append(unfinished.begun(begun[0], Question(drawn[begun[0]], "", {}), G))
            begun[0] += 1
        before = sum(group.tokens for group in in_flight)
        goal = unfinished.Goal(P, frozenset())
        rows.go_on(engine, params, step, in_flight, sampling, 0, P, lambda: goal.is_reached(in_flight))
        sampled = sum(group.tokens for group in in_flight) - before
        for group in [group for group in in_flight if group.is_complete][:P]:
            in_flight.remove(group)
        return sampled

    def measured(name: str, way: Callable[[int], int]) -> tuple[float, float]:
        for repeat in range(2):  # the first compiles
            in_flight.clear()
            begun[0] = tokens = 0
            for step in range(WARM + options.batches):
                if step == WARM:
                    passes[0], tokens, began = 0, 0, time.process_time()
                tokens += way(step)
            seconds = time.process_time() - began
            suffix = "" if repeat else " with compilation"
            print(f"{name}: {tokens} tokens in {passes[0]} passes, {seconds:.2f} CPU-s{suffix}", file=sys.stderr)
        return tokens / passes[0], tokens / seconds

    whole = measured("lock step", lock_step)
    ours = measured("in flight", flying)
    print(f"{options.model}, {P} prompts x {G} samples, {P * G} rows, lengths of about {options.mean} tokens "
          f"and at most {options.new_tokens}, {options.batches} batches")  # fmt: skip
    for name, (per_pass, per_second) in (("lock step", whole), ("in flight", ours)):
        print(f"{name:12} {per_pass:7.1f} tokens a pass  {per_pass / whole[0]:5.2f} x   {per_second:9.0f} tokens a "
              f"CPU-s  {per_second / whole[1]:5.2f} x")  # fmt: skip


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="bench-13m")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=512)
    parser.add_argument("--mean", type=int, default=64)
    parser.add_argument("--batches", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    huge_pages.use()
    main()
