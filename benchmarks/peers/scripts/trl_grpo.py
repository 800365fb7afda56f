"""TRL's GRPOTrainer on the benchmark's shape: run with the Python of an environment that has torch and trl."""

import tempfile

from datasets import Dataset
from grpo_shapes import LEARNING_RATE, arguments, prompts, reward
from shapes import SHAPES
from trl import GRPOConfig, GRPOTrainer
from trl_sft import Marks, model, tokenizer


def main() -> None:
    options = arguments()
    shape = SHAPES[options.model]
    rows = options.prompts * options.group
    texts = [" ".join(str(i) for i in tokens) for tokens in prompts(options.prompts * options.steps)]
    with tempfile.TemporaryDirectory() as output:
        config = GRPOConfig(
            output_dir=output,
            max_steps=options.steps,
            per_device_train_batch_size=rows,
            num_generations=options.group,
            max_completion_length=options.new_tokens,
            generation_kwargs={"min_new_tokens": options.new_tokens},
            beta=options.beta,
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
