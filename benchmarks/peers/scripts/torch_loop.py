"""The plainest loop around transformers' Llama and torch's AdamW: no trainer at all."""

import torch
from shapes import BATCH, LEARNING_RATE, LENGTH, SHAPES, arguments, finished, rows
from trl_sft import model


def main() -> None:
    options = arguments()
    made = model(SHAPES[options.model])
    optimizer = torch.optim.AdamW(made.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    tokens = torch.tensor(rows(BATCH * options.steps)).reshape(options.steps, BATCH, LENGTH)
    for step, batch in enumerate(tokens, 1):
        logits = made(batch).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].reshape(-1, logits.shape[-1]).float(), batch[:, 1:].reshape(-1)
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        finished(step)


if __name__ == "__main__":
    main()
