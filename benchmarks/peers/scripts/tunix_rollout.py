"""Tunix's own sampler on the benchmark's shape: run with the Python of an environment that has google-tunix."""

from rollout_shapes import arguments, finished, prompts
from shapes import SHAPES
from tunix.generate import sampler as tunix
from tunix_sft import model


class Ids:
    """A tokenizer for prompts that are ids already, written as text. The sampler puts a first token before them."""

    def encode(self, text, **kwargs):
        return [int(word) for word in text.split()][1:]

    def decode(self, ids, **kwargs):
        return " ".join(str(i) for i in ids)

    def bos_id(self):
        return 1

    def eos_id(self):
        return 2

    def pad_id(self):
        return 0


def main() -> None:
    options = arguments()
    shape = SHAPES[options.model]
    cache = tunix.CacheConfig(options.cache, shape.layers, shape.kv_heads, shape.head)
    sampler = tunix.Sampler(model(shape), Ids(), cache)
    for step in range(1, options.steps + 1):
        done = sampler(
            [" ".join(str(i) for i in prompt) for prompt in prompts(options.samples, step)],
            max_generation_steps=options.new_tokens,
            max_prompt_length=64,
            temperature=1.0,
            top_p=1.0,
            eos_tokens=[-1],
            seed=step,
            return_logprobs=True,
        )
        finished(step, sum(len(tokens) for tokens in done.tokens))


if __name__ == "__main__":
    main()
