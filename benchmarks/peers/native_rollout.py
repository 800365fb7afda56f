"""The native engine as one side of `rollout.py`: the same prompts, lengths and end tokens as the peers'."""

import dataclasses
import sys
from pathlib import Path

from pttrainer.commands import huge_pages
from pttrainer.runtime.distributed.processes import initialize, prepare_environment

sys.path.insert(0, str(Path(__file__).parent / "scripts"))
from rollout_shapes import arguments, finished, prompts


def main() -> None:
    options = arguments()
    prepare_environment("cpu-1", {})
    import jax  # after the environment that it reads

    from pttrainer.data.tokenization.tokenizer import byte_tokenizer
    from pttrainer.models import Model, preset
    from pttrainer.rollout.engine import Draw, Prompt, Sampling
    from pttrainer.rollout.native.native_engine import NativeEngine

    initialize()
    model = Model(preset(options.model))
    params = jax.jit(model.init)(jax.random.key(0))
    tokenizer = dataclasses.replace(byte_tokenizer(), eos_ids=options.end_ids or (-1,))
    engine = NativeEngine(model, tokenizer, rows=options.batch)
    for step in range(1, options.steps + 1):
        given = [Prompt(tokens, number) for number, tokens in enumerate(prompts(options.samples, step))]
        sampling = Sampling(options.new_tokens, options.cache)
        done = engine.generate(params, given, 1, sampling, Draw(0, step))
        finished(step, int(done.lengths_N.sum()))


if __name__ == "__main__":
    huge_pages.use()
    main()
