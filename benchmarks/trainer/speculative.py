"""Sampling with guessed tokens against token by token: tokens for each pass of the model, and the ratio of time.

A model with random weights says nothing, so this measures the two ends between which every job lies. Greedy, it soon
says the same over and over, and n-grams hold: the most that they can save. At temperature 1 it is close to uniform, and
nothing holds: what guessing costs. The third is a draft that is the model, so that everything holds: the cost of a pass
over several tokens, with that of a draft as large as the model. CPU seconds too, because machines are shared.
"""

import argparse
import dataclasses
import time

from pttrainer.commands import huge_pages
from pttrainer.runtime.distributed.processes import initialize, prepare_environment


def main() -> None:
    options = _arguments()
    prepare_environment("cpu-1", {})
    import jax  # after the environment that it reads
    import numpy as np

    from pttrainer.data.tokenization.tokenizer import byte_tokenizer
    from pttrainer.models import Model, preset
    from pttrainer.rollout.engine import Draw, Prompt, Sampling
    from pttrainer.rollout.native.native_engine import NativeEngine
    from pttrainer.rollout.speculative.draft_model import Draft
    from pttrainer.rollout.speculative.prompt_lookup import Ngram
    from pttrainer.rollout.speculative.verify import Speculation, with_rates

    initialize()
    model = Model(preset(options.model))
    params = jax.jit(model.init)(jax.random.key(0))
    endless = dataclasses.replace(byte_tokenizer(), eos_ids=(-1,))
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, (options.rows, 64)).tolist()
    prompts = [Prompt(row, number) for number, row in enumerate(tokens)]
    ngram = Speculation(Ngram(options.tokens, 4))
    itself = Speculation(Draft(options.tokens, model), jax.jit(model.for_decoding)(params), model)
    greedy, free = (Sampling(options.new_tokens, 4096, greedy=greedy) for greedy in (True, False))
    print(
        f"{options.model}, {options.rows} rows, {options.new_tokens} new tokens each, {options.tokens} guesses a pass"
    )
    print(f"{'':28}  tokens/pass  seconds  CPU-s   time with / without")
    for name, how, sampling in (("n-grams, greedy", ngram, greedy), ("n-grams, temperature 1", ngram, free),
                                ("the model itself, greedy", itself, greedy)):  # fmt: skip
        engines = [NativeEngine(model, endless, speculation=guess) for guess in (None, how)]
        for engine in engines:
            engine.generate(params, prompts, 1, sampling, Draw(0, 0))  # compiles
        spent = [[np.inf, np.inf], [np.inf, np.inf]]
        for _ in range(options.repeats):  # in turns, so that a busy moment meets both
            for place, engine in enumerate(engines):
                began = time.perf_counter(), time.process_time()
                done = engine.generate(params, prompts, 1, sampling, Draw(0, 0))
                taken = time.perf_counter() - began[0], time.process_time() - began[1]
                spent[place] = [min(pair) for pair in zip(spent[place], taken, strict=True)]
        rate = with_rates(done.facts)["speculation/tokens_per_pass"]
        ratios = [guessed / plain for plain, guessed in zip(*spent, strict=True)]
        print(
            f"{name:28}  {rate:11.2f}  {spent[1][0]:7.2f}  {spent[1][1]:5.2f}   {ratios[0]:.2f} (CPU {ratios[1]:.2f})"
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="bench-13m")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    huge_pages.use()
    main()
