"""The peers' side of `gpu_bench.py`: run with the Python of an environment that has torch for CUDA and the peers.

    python torch_peer.py ROW MODEL DATA STEPS BATCH LENGTH NEW_TOKENS GROUP PROMPTS

Written to their documentation. It imports nothing of ours. The last line is JSON: seconds, tokens_per_s, memory_gib.
"""

import json
import statistics
import sys
import tempfile
import time
import zlib
from pathlib import Path

WARM_UP = 2
ROWS, PROMPT, REPEATS = 64, 64, 3


def sft(row, model, data, steps, batch, length, *_):
    import torch
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig
    from trl import SFTConfig, SFTTrainer

    quantization = peft = None
    if row != "sft":
        from peft import LoraConfig

        peft = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    if row == "qlora":
        quantization = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    # As ours: master weights in float32 where they are trained, in bfloat16 where they are frozen.
    dtype = torch.float32 if row == "sft" else torch.bfloat16
    loaded = AutoModelForCausalLM.from_pretrained(
        model, dtype=dtype, quantization_config=quantization, attn_implementation="sdpa", device_map={"": 0}
    )
    with tempfile.TemporaryDirectory() as output:
        config = SFTConfig(
            output_dir=output,
            max_steps=steps,
            per_device_train_batch_size=batch,
            max_length=length,
            packing=True,
            bf16=True,
            gradient_checkpointing=True,
            torch_compile=row != "qlora",
            report_to="none",
            save_strategy="no",
            logging_steps=10**6,
            disable_tqdm=True,
        )
        marks = timer()
        SFTTrainer(
            model=loaded,
            args=config,
            train_dataset=load_dataset("json", data_files=data, split="train"),
            peft_config=peft,
            callbacks=[marks],
        ).train()
    seconds = marks.seconds()
    return seconds, batch * length / seconds


def grpo(row, model, data, steps, batch, length, new_tokens, group, prompts):
    from datasets import load_dataset
    from trl import GRPOConfig, GRPOTrainer

    def reward(completions, **_):
        return [zlib.crc32(completion.encode()) % 1000 / 1000 for completion in completions]

    with tempfile.TemporaryDirectory() as output:
        config = GRPOConfig(
            output_dir=output,
            max_steps=steps,
            per_device_train_batch_size=prompts * group,
            num_generations=group,
            max_completion_length=new_tokens,
            generation_kwargs={"min_tokens": new_tokens},
            use_vllm=True,
            vllm_mode="colocate",
            vllm_gpu_memory_utilization=0.3,
            beta=0.0,
            bf16=True,
            gradient_checkpointing=True,
            torch_compile=True,
            report_to="none",
            save_strategy="no",
            logging_steps=10**6,
            disable_tqdm=True,
        )
        marks = timer()
        dataset = load_dataset("json", data_files=data, split="train")
        GRPOTrainer(model=model, reward_funcs=reward, args=config, train_dataset=dataset, callbacks=[marks]).train()
    seconds = marks.seconds()
    return seconds, prompts * group * new_tokens / seconds


def decode(row, model, data, steps, batch, length, new_tokens, *_):
    from vllm import LLM, SamplingParams

    engine = LLM(model=model, dtype="bfloat16", load_format="dummy", max_num_seqs=ROWS, enable_prefix_caching=False)
    prompts = [{"prompt_token_ids": [97 + (row + place) % 26 for place in range(PROMPT)]} for row in range(ROWS)]

    def seconds(new):
        taken = []
        for _ in range(REPEATS + 1):
            began = time.perf_counter()
            engine.generate(prompts, SamplingParams(max_tokens=new, ignore_eos=True), use_tqdm=False)
            taken.append(time.perf_counter() - began)
        return statistics.median(taken[1:])

    step = (seconds(2 * new_tokens) - seconds(new_tokens)) / new_tokens
    return step, ROWS / step


def timer():
    """A callback that knows the median seconds of a step."""
    from transformers import TrainerCallback

    class Timer(TrainerCallback):
        ends = []

        def on_step_end(self, *args, **rest):
            import torch

            torch.cuda.synchronize()
            self.ends.append(time.perf_counter())

        def seconds(self):
            return statistics.median(b - a for a, b in zip(self.ends[WARM_UP - 1 :], self.ends[WARM_UP:], strict=False))

    return Timer()


def main(row, model, data, *numbers):
    side = {"decode": decode, "grpo": grpo}.get(row, sft)
    seconds, tokens_per_s = side(row, model, str(Path(data)), *map(int, numbers))
    import torch

    memory = torch.cuda.max_memory_allocated() / 2**30 if row != "decode" else None  # vLLM takes all that it may
    print(json.dumps({"seconds": seconds, "tokens_per_s": tokens_per_s, "memory_gib": memory}))


if __name__ == "__main__":
    main(*sys.argv[1:])
