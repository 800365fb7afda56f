"""One side of `gpu_bench.py`: how fast our sampler decodes 64 rows, as a share of the memory's bandwidth.

    python benchmarks/gpu/decode.py ACCELERATOR MODEL NEW_TOKENS

A step reads all weights once and the keys and values of its rows; its seconds are those of NEW_TOKENS more tokens, so
that prefill and start are in neither. Weights are random, in the sizes of MODEL: their values do not matter.
"""

import dataclasses
import json
import statistics
import sys
import time

from ptapi.accelerators import compiler_flags, resolve
from pttrainer.runtime.distributed.processes import initialize, prepare_environment

ROWS, PROMPT, REPEATS = 64, 64, 3


def flags(accelerator: str) -> dict[str, str]:
    """Return the compiler's flags of a GPU."""
    return compiler_flags.flags(resolve(accelerator).generation)


def main(accelerator: str, uri: str, new_tokens: int) -> None:
    """Print one line of JSON: the fields of `gpu_bench.Figures`."""
    prepare_environment(accelerator, {} if accelerator.startswith("cpu") else flags(accelerator))
    import jax  # after the environment that it reads

    from pttrainer.data.sources.files import silent
    from pttrainer.data.tokenization.tokenizer import byte_tokenizer
    from pttrainer.models import Model
    from pttrainer.models.loading import model_spec
    from pttrainer.models.shapes import parameters
    from pttrainer.rollout.engine import Draw, Prompt, Sampling
    from pttrainer.rollout.native.native_engine import NativeEngine

    initialize()
    chip = resolve(accelerator).chip
    dtype = "float32" if chip is None else "bfloat16"
    config = model_spec.open_source(uri, "MODEL", silent, weights=False).config
    model = Model(config, compute_dtype=dtype, param_dtype=dtype)
    params = jax.jit(model.init)(jax.random.key(0))
    engine = NativeEngine(model, dataclasses.replace(byte_tokenizer(), eos_ids=(-1,)), rows=ROWS)
    prompts = [Prompt([97 + (row + place) % 26 for place in range(PROMPT)], row) for row in range(ROWS)]

    def seconds(new: int) -> float:
        taken = []
        for repeat in range(REPEATS + 1):  # the first compiles
            began = time.perf_counter()
            engine.generate(params, prompts, 1, Sampling(new, PROMPT + 2 * new_tokens), Draw(0, repeat))
            taken.append(time.perf_counter() - began)
        return statistics.median(taken[1:])

    step_s = max((seconds(2 * new_tokens) - seconds(new_tokens)) / new_tokens, 1e-9)
    size = 4 if chip is None else 2
    held = PROMPT + 1.5 * new_tokens
    cache = 2 * config.layers * config.kv_heads * config.head_dim * held * ROWS * size
    read = parameters.count(config) * size + cache
    share = None if chip is None else read / step_s / (chip.hbm_gbytes_per_s * 1e9)
    memory = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    made = {"seconds": step_s, "tokens_per_s": ROWS / step_s, "bandwidth": share}
    print(json.dumps({**made, "memory_gib": None if memory is None else memory / 2**30}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
