"""TRL's SFTTrainer on the benchmark's shape: run with the Python of an environment that has torch and trl."""

import tempfile

import torch
from datasets import Dataset
from shapes import BATCH, LEARNING_RATE, LENGTH, LORA_ALPHA, LORA_RANK, SHAPES, arguments, finished, rows
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer


class Marks(TrainerCallback):
    """Says when a step is done."""

    def on_step_end(self, args, state, control, **rest):
        finished(state.global_step)


def model(shape):
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocab,
            hidden_size=shape.width,
            intermediate_size=shape.feed_forward,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head,
            tie_word_embeddings=True,
            max_position_embeddings=8192,
        )
    )


def tokenizer(size):
    """Ids written as text, between spaces; padding and end are the two after them."""
    words = {str(i): i for i in range(size)} | {"<pad>": size, "</s>": size + 1}
    made = Tokenizer(WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>")


def main() -> None:
    options = arguments()
    peft = None
    if options.lora:
        from peft import LoraConfig

        peft = LoraConfig(r=LORA_RANK, lora_alpha=LORA_ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
    with tempfile.TemporaryDirectory() as directory:
        trainer = SFTTrainer(
            model=model(SHAPES[options.model]),
            args=SFTConfig(
                output_dir=directory,
                per_device_train_batch_size=BATCH,
                max_steps=options.steps,
                learning_rate=LEARNING_RATE,
                max_length=LENGTH,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                bf16=False,
                disable_tqdm=True,
                gradient_checkpointing=False,
            ),
            train_dataset=Dataset.from_dict({"input_ids": rows(BATCH * options.steps)}),
            processing_class=tokenizer(256),
            peft_config=peft,
            callbacks=[Marks()],
        )
        trainer.train()


if __name__ == "__main__":
    main()
