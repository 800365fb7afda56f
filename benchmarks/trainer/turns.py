"""Rollouts of several turns with kept prompts against prompts computed whole: CPU seconds, and their ratio.

A turn is what the model says and what it then observes. Whole, every turn computes all tokens before it again; kept, it
computes those of the turn before. Samples with kept prompts are compared with those of an engine that computes all
pages of every turn: the same bits. CPU seconds, because machines are shared.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import Any

from pttrainer.commands import huge_pages
from pttrainer.runtime.distributed.processes import initialize, prepare_environment


def main() -> None:
    options = _arguments()
    prepare_environment("cpu-1", {})
    import jax  # after the environment that it reads
    import numpy as np

    from pttrainer.data.tokenization.tokenizer import byte_tokenizer
    from pttrainer.models import Model, preset
    from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
    from pttrainer.rollout.native.native_engine import NativeEngine
    from pttrainer.rollout.native.prefix_reuse.kept_prompts import with_reused_share

    initialize()
    model = Model(preset(options.model))
    params = jax.jit(model.init)(jax.random.key(0))
    endless = dataclasses.replace(byte_tokenizer(), eos_ids=(-1,))
    observed = options.turn_tokens - options.new_tokens
    shape = options.turns, options.episodes, observed
    observations = np.random.default_rng(0).integers(0, model.config.vocab_size, shape).tolist()
    sampling = Sampling(options.new_tokens, options.turns * options.turn_tokens)

    def rollout(engine: NativeEngine, *, forgets: bool) -> tuple[float, list[Completions]]:
        texts: list[list[int]] = [[] for _ in range(options.episodes)]
        began, turns = time.process_time(), []
        for turn in range(options.turns):
            texts = [text + observations[turn][n] for n, text in enumerate(texts)]
            prompts = [Prompt(text, number) for number, text in enumerate(texts)]
            turns.append(engine.generate(params, prompts, 1, sampling, Draw(0, turn)))
            texts = [text + turns[-1].tokens(n) for n, text in enumerate(texts)]
            if forgets:
                engine.forget()
        engine.forget()
        return time.process_time() - began, turns

    whole, kept = (NativeEngine(model, endless, keeps_prompts=keeps) for keeps in (False, True))
    ways: Sequence[tuple[str, dict[str, Any]]] = (
        ("whole prompts, as without", {"engine": whole, "forgets": False}),
        ("all pages of every turn", {"engine": kept, "forgets": True}),
        ("kept prompts", {"engine": kept, "forgets": False}),
    )
    spent, sampled = [float("inf")] * 3, {}
    for repeat in range(1 + options.repeats):  # the first compiles; in turns, so that a busy moment meets all
        for place, (name, how) in enumerate(ways):
            seconds, sampled[name] = rollout(**how)
            spent[place] = min(spent[place], seconds) if repeat else spent[place]
            print(f"{name}: {seconds:.2f} CPU-s{'' if repeat else ' with compilation'}", file=sys.stderr)
    shares = [with_reused_share(each.facts)["prompt_tokens/reused_share"] for each in sampled["kept prompts"]]
    print(f"{options.model}, {options.episodes} episodes, {options.turns} turns of {observed} observed and "
          f"{options.new_tokens} sampled tokens; kept of the last prompt: {shares[-1]:.0%}")  # fmt: skip
    for place, (name, _) in enumerate(ways):
        print(f"{name:28} {spent[place]:7.2f} CPU-s   {spent[0] / spent[place]:5.2f} x as fast")
    for wanted, ours in zip(sampled["all pages of every turn"], sampled["kept prompts"], strict=True):
        np.testing.assert_array_equal(ours.tokens_NT, wanted.tokens_NT)
        np.testing.assert_array_equal(ours.logps_NT, wanted.logps_NT)
    print("samples with and without what was kept: the same bits")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="bench-13m")
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--turn-tokens", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    huge_pages.use()
    main()
