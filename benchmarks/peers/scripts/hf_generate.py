"""transformers' generate on the benchmark's shape, in batches where there are more samples than rows."""

import torch
from rollout_shapes import arguments, finished, prompts
from shapes import SHAPES
from trl_sft import model


def main() -> None:
    options = arguments()
    made = model(SHAPES[options.model]).eval()
    torch.manual_seed(0)
    ends = list(options.end_ids) or None
    for step in range(1, options.steps + 1):
        tokens = 0
        given = torch.tensor(prompts(options.samples, step))
        for batch in given.split(options.batch):
            with torch.inference_mode():
                done = made.generate(
                    batch,
                    attention_mask=torch.ones_like(batch),
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    top_p=1.0,
                    max_new_tokens=options.new_tokens,
                    eos_token_id=ends,
                    pad_token_id=0,
                )[:, batch.shape[1] :]
            if ends is None:
                tokens += done.numel()
            else:
                is_end = torch.isin(done, torch.tensor(ends))
                lengths = torch.where(is_end.any(1), is_end.int().argmax(1) + 1, done.shape[1])
                tokens += int(lengths.sum())
        finished(step, tokens)


if __name__ == "__main__":
    main()
