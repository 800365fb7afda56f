"""Tunix's GRPO learner on the benchmark's shape: run with the Python of an environment that has google-tunix."""

import jax
import numpy as np
import optax
from grpo_shapes import LEARNING_RATE, PROMPT, arguments, prompts, reward
from jax.sharding import Mesh
from shapes import SHAPES
from tunix.rl import rl_cluster
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout.base_rollout import RolloutConfig
from tunix_rollout import Ids
from tunix_sft import Marks, model


def main() -> None:
    options = arguments()
    shape = SHAPES[options.model]
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    cluster = rl_cluster.RLCluster(
        actor=model(shape),
        reference=model(shape) if options.beta else None,
        tokenizer=Ids(),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys(roles, mesh),
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(LEARNING_RATE)),
                eval_every_n_steps=10**6,
                max_steps=options.steps,
            ),
            rollout_config=RolloutConfig(
                max_tokens_to_generate=options.new_tokens,
                max_prompt_length=PROMPT,
                kv_cache_size=PROMPT + options.new_tokens,
                temperature=1.0,
                eos_tokens=[-1],
            ),
        ),
    )
    learner = GRPOLearner(
        rl_cluster=cluster,
        algo_config=GRPOConfig(num_generations=options.group, beta=options.beta, kl_loss_mode="low_var_kl"),
        reward_fns=lambda prompts, completions, **rest: [reward(completion) for completion in completions],
    )
    cluster.actor_trainer.with_training_hooks(Marks())
    # The sampler puts a first token before those of a prompt.
    texts = [" ".join(str(i) for i in tokens) for tokens in prompts(options.prompts * options.steps)]
    batches = [texts[i : i + options.prompts] for i in range(0, len(texts), options.prompts)]
    learner.train([{"prompts": np.array(batch)} for batch in batches])


if __name__ == "__main__":
    main()
