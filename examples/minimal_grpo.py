"""GRPO in one file, on the trainer's own modules: a model with random weights learns to repeat the letter it is given.

    python examples/minimal_grpo.py                   # about half a minute on a laptop; the reward rises from 0 to 1
    python examples/minimal_grpo.py --loss dapo --samples 8

Read it from top to bottom. Each step of training does six things:

    1. draw prompts            "a:"  "d:"  "b:" …
    2. sample                  G completions of each, with the weights of now
    3. score                   a reward per completion
    4. compare                 a completion's advantage: how much better it is than the others of its prompt
    5. lay out                 prompt and completion as one row of tokens, and which of them are trained
    6. update                  the policy-gradient loss of those tokens, its gradient, the optimizer

A real job does the same with more care (docs/concepts/one-grpo-step.md follows one through the code). Left out here:
chat templates, a reference model, several updates per batch, meshes, checkpoints, evaluation.

Letters in names: P prompts of a step, G samples of each, N = P·G rows, T tokens, D width of the model, V vocabulary.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pttrainer.algorithms.credit_assignment import advantages
from pttrainer.batch import Batch
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.losses import policy_gradient, sampler_correction
from pttrainer.losses.chunked_logprobs import token_stats
from pttrainer.models import PRESETS, Model, preset
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.native.native_engine import NativeEngine

LETTERS = "abcd"
TOKENIZER = byte_tokenizer()  # a token is a byte, so a letter is one token


@dataclass(frozen=True)
class Settings:
    """What the command line may change (`MEANINGS`)."""

    model: str = "tiny"
    loss: str = "grpo"
    steps: int = 60
    prompts: int = 16
    samples: int = 16
    tokens: int = 8
    learning_rate: float = 3e-3
    seed: int = 0


MEANINGS = {
    "model": "a preset of random weights",
    "loss": "whose policy-gradient loss",
    "steps": "optimizer steps",
    "prompts": "prompts of a step",
    "samples": "completions of each prompt, which are compared with each other",
    "tokens": "most tokens of a completion",
    "learning_rate": "of AdamW, constant",
    "seed": "of weights, prompts and samples",
}


def reward(letter: str, completion: str) -> float:
    """Return the share of the completion that is the letter; partial credit gives the first steps a slope."""
    return completion.count(letter) / max(len(completion), 1)


def train(settings: Settings) -> Iterator[float]:
    """Yield the mean reward of every step."""
    model = Model(preset(settings.model))
    params = jax.jit(model.init)(jax.random.key(settings.seed))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(settings.learning_rate))
    optimizer_state = optimizer.init(params)
    engine = NativeEngine(model, TOKENIZER)
    letters = np.random.default_rng(settings.seed)
    for step in range(settings.steps):
        wanted = [LETTERS[i] for i in letters.integers(len(LETTERS), size=settings.prompts)]
        prompts = [TOKENIZER.encode(f"{letter}:") for letter in wanted]
        completions = sample(engine, params, prompts, step, settings)
        rewards_PG = score(wanted, completions, settings.samples)
        advantages_PG = advantages.ESTIMATORS[policy_gradient.VARIANTS[settings.loss].advantage](rewards_PG)
        batch = lay_out(prompts, completions, advantages_PG, settings)
        params, optimizer_state = update(model, optimizer, settings.loss, params, optimizer_state, batch)
        yield float(rewards_PG.mean())


def sample(
    engine: NativeEngine, params: Any, prompts: Sequence[Sequence[int]], step: int, settings: Settings
) -> Completions:
    """Draw G completions of each prompt; row p·G + g is the g-th of prompt p.

    The random keys come from seed, step and the prompt's number: the same run draws the same samples again.
    """
    numbered = [Prompt(tokens, number) for number, tokens in enumerate(prompts)]
    longest = max(len(tokens) for tokens in prompts) + settings.tokens
    sampling = Sampling(max_new_tokens=settings.tokens, max_length=longest)
    return engine.generate(params, numbered, settings.samples, sampling, Draw(settings.seed, step))


def score(wanted: Sequence[str], completions: Completions, samples: int) -> np.ndarray:
    """Return `rewards_PG`."""
    texts = [TOKENIZER.decode(completions.tokens(row)) for row in range(len(wanted) * samples)]
    return np.array([reward(wanted[row // samples], text) for row, text in enumerate(texts)]).reshape(-1, samples)


def lay_out(
    prompts: Sequence[Sequence[int]], completions: Completions, advantages_PG: np.ndarray, settings: Settings
) -> Batch:
    """Return one row of tokens per completion. Entry t of a row is about the prediction of the token after t.

    The mask is 1 where that token was sampled; the prompt is read, and not learned. The weights say what share of
    the loss a token has: they are made of the whole batch's mask, so the loss is one plain sum.
    """
    N, T = advantages_PG.size, max(map(len, prompts)) + settings.tokens - 1
    tokens_NT = np.full((N, T + 1), TOKENIZER.pad_id, np.int32)
    segments_NT, mask_NT, sampler_NT = (np.zeros((N, T), dtype) for dtype in (np.int32, np.float32, np.float32))
    for row in range(N):
        prompt, completion = prompts[row // settings.samples], completions.tokens(row)
        end = len(prompt) + len(completion)
        tokens_NT[row, :end] = [*prompt, *completion]
        segments_NT[row, : end - 1] = 1  # 0 is padding
        mask_NT[row, len(prompt) - 1 : end - 1] = 1.0
        sampler_NT[row, len(prompt) - 1 : end - 1] = completions.logps_NT[row, : len(completion)]
    return Batch(
        tokens_BT=tokens_NT[:, :-1],
        targets_BT=tokens_NT[:, 1:],
        positions_BT=np.tile(np.arange(T, dtype=np.int32), (N, 1)),
        segment_ids_BT=segments_NT,
        mask_BT=mask_NT,
        weight_BT=policy_gradient.VARIANTS[settings.loss].weights(mask_NT, settings.tokens),
        advantages_BT=mask_NT * advantages_PG.reshape(-1, 1).astype(np.float32),
        sampler_logps_BT=sampler_NT,
    )


def loss(params: Any, model: Model, variant: str, batch: Batch) -> jax.Array:
    """Return the policy-gradient loss of the batch.

    With one update per batch the policy is the one that sampled: the ratio of the two is 1, the loss itself about 0,
    and its gradient that of −advantage · log-prob. The importance weight corrects what rounding makes the sampler's
    log-probs differ by.
    """
    form = policy_gradient.VARIANTS[variant]
    hidden_BTD = model.forward(params, batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)
    stats = token_stats(hidden_BTD, model.head(params), batch.targets_BT, batch.mask_BT)
    old_BT = policy_gradient.old_policy(stats.logps_BT, batch)
    loss_BT, _ = form.loss(stats.logps_BT, old_BT, batch.advantages_BT, batch.mask_BT, form.clip)
    importance_BT = sampler_correction.weights(old_BT, batch.sampler_logps_BT, batch.mask_BT)
    return jnp.sum(loss_BT * importance_BT * batch.weight_BT)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=(3, 4))
def update(
    model: Model, optimizer: optax.GradientTransformation, variant: str, params: Any, state: Any, batch: Batch
) -> tuple[Any, Any]:
    """Return the weights and the optimizer's state after one step; compiled once, for every batch has one shape."""
    gradient = jax.grad(loss)(params, model, variant, batch)
    updates, state = optimizer.update(gradient, state, params)
    return optax.apply_updates(params, updates), state


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print a line and a bar per step."""
    settings, began = read(arguments), time.monotonic()
    for step, mean in enumerate(train(settings), start=1):
        print(f"step {step:3d}  {time.monotonic() - began:5.1f} s  reward {mean:.3f}  {'#' * round(40 * mean)}")


def read(arguments: Sequence[str] | None) -> Settings:
    """Return the command line's settings; a wrong one ends the program with a sentence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = [name for name, config in PRESETS.items() if config.vocab_size == TOKENIZER.size]
    choices = {"model": models, "loss": sorted(policy_gradient.VARIANTS)}
    for name, default in vars(Settings()).items():
        flag, help_text = f"--{name.replace('_', '-')}", f"{MEANINGS[name]} (default: {default})"
        parser.add_argument(flag, type=type(default), default=default, choices=choices.get(name), help=help_text)
    settings = Settings(**vars(parser.parse_args(arguments)))
    for name, least in {"steps": 1, "prompts": 1, "samples": 2, "tokens": 1, "seed": 0}.items():
        if vars(settings)[name] < least:
            parser.error(f"--{name}: {vars(settings)[name]}; accepted: {least} or more")
    return settings


if __name__ == "__main__":
    main()
