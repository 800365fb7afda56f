"""Tunix's PeftTrainer on the benchmark's shape: run with the Python of an environment that has google-tunix."""

import time

import jax
import numpy as np
import optax
import qwix
from flax import nnx
from shapes import BATCH, LEARNING_RATE, LENGTH, LORA_ALPHA, LORA_RANK, SHAPES, arguments, finished, rows
from tunix.models.llama3 import model as llama
from tunix.sft import hooks, peft_trainer, utils


class Marks(hooks.TrainingHooks):
    """Says when a step is done."""

    def on_train_start(self, train_ctx):
        pass

    def on_train_end(self, train_ctx):
        pass

    def on_train_step_start(self, train_ctx):
        pass

    def on_train_step_end(self, train_ctx, train_step, train_loss):
        float(train_loss)
        finished(int(train_step))

    def on_eval_step_start(self, train_ctx):
        pass

    def on_eval_step_end(self, train_ctx, eval_loss):
        pass


def model(shape):
    config = llama.ModelConfig(
        num_layers=shape.layers,
        vocab_size=shape.vocab,
        embed_dim=shape.width,
        hidden_dim=shape.feed_forward,
        num_heads=shape.heads,
        head_dim=shape.head,
        num_kv_heads=shape.kv_heads,
        rope_theta=1_000_000,
        norm_eps=1e-5,
        weight_tying=True,
    )
    made = llama.Llama3(config, rngs=nnx.Rngs(params=0))
    # Its feed-forward weights start at zero, which no trained model has.
    state = nnx.state(made, nnx.Param)
    keys = iter(jax.random.split(jax.random.key(0), len(jax.tree.leaves(state))))
    nnx.update(made, jax.tree.map(lambda x: 0.02 * jax.random.normal(next(keys), x.shape, x.dtype), state))
    return made


def with_adapters(made):
    provider = qwix.LoraProvider(
        module_path=".*(q_proj|kv_proj|o_proj|k_proj|v_proj|gate_proj|up_proj|down_proj).*",
        rank=LORA_RANK,
        alpha=LORA_ALPHA,
    )
    ids = np.ones((1, 8), np.int32)
    mask = np.ones((1, 8), bool)
    return qwix.apply_lora_to_model(
        made,
        provider,
        ids,
        utils.build_positions_from_mask(mask),
        None,
        utils.make_causal_attn_mask(mask),
        rngs=nnx.Rngs(0),
    )


def main() -> None:
    options = arguments()
    made = model(SHAPES[options.model])
    if options.lora:
        began = time.monotonic()
        made = with_adapters(made)
        print(f"wrapping {time.monotonic() - began:.2f} s", flush=True)
    trained = nnx.LoRAParam if options.lora else nnx.Param
    print("trained", sum(x.size for x in jax.tree.leaves(nnx.state(made, trained))), flush=True)
    tokens = np.array(rows(BATCH * options.steps), np.int32).reshape(options.steps, BATCH, LENGTH)
    mask = np.ones((BATCH, LENGTH), bool)
    trainer = peft_trainer.PeftTrainer(
        made,
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(LEARNING_RATE, weight_decay=0.0)),
        peft_trainer.TrainingConfig(eval_every_n_steps=10**6, max_steps=options.steps),
    )
    trainer.training_hooks = Marks()
    trainer = trainer.with_gen_model_input_fn(
        lambda x: {
            "input_tokens": x.input_tokens,
            "input_mask": x.input_mask,
            "positions": utils.build_positions_from_mask(x.input_mask),
            "attention_mask": utils.make_causal_attn_mask(x.input_mask),
        }
    )
    trainer.train([peft_trainer.TrainingInput(input_tokens=batch, input_mask=mask) for batch in tokens])


if __name__ == "__main__":
    main()
