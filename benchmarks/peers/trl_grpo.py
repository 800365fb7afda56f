"""TRL's GRPOTrainer on the benchmark's shape: run with the Python of an environment that has torch and trl."""

import tempfile

from datasets import Dataset
from grpo_shapes import LEARNING_RATE, arguments, prompts, reward
from shapes import SHAPES
from trl import GRPOConfig, GRPOTrainer
from trl_sft import Marks, model, tokenizer


def main() -> None:
    asked = arguments()
    shape = SHAPES[asked.model]
    rows = asked.prompts * asked.group
    texts = [" ".join(str(i) for i in tokens) for tokens in prompts(asked.prompts * asked.steps)]
    with tempfile.TemporaryDirectory() as output:
        config = GRPOConfig(
            output_dir=output,
            max_steps=asked.steps,
            per_device_train_batch_size=rows,
            num_generations=asked.group,
            max_completion_length=asked.new_tokens,
            generation_kwargs={"min_new_tokens": asked.new_tokens},
            beta=asked.beta,
            learning_rate=LEARNING_RATE,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_steps=10**6,
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=model(shape),
            reward_funcs=lambda completions, **rest: [reward(completion) for completion in completions],
            args=config,
            train_dataset=Dataset.from_dict({"prompt": texts}),
            processing_class=tokenizer(shape.vocab - 2),
            callbacks=[Marks()],
        )
        trainer.train()


if __name__ == "__main__":
    main()
