"""Kinetic's examples for language models: no functions here, but jobs.

What those functions do by hand (fetch weights, shard, apply LoRA, sample, save) is what a job says in a few fields; it
resumes after a preemption, is evaluated, and leaves a model that `ptctl chat` and `ptctl serve` take.
"""

import posttrain

OUTPUT = {"uri": "gs://my-bucket/runs"}
GEMMA_TOKEN = {"name": "hf"}  # kubectl create secret generic hf --from-literal=token=…

gemma3_sft_demo = posttrain.PostTrainJob(
    name="gemma3-sft",
    model={"uri": "hf://google/gemma-3-1b-it", "token_secret_ref": GEMMA_TOKEN},
    algorithm={"sft": {}},
    data={"train": {"uri": "gs://my-bucket/capitals.jsonl"}},  # {"prompt": …, "completion": …}, a line each
    accelerator={"type": "v5e-8"},
    output=OUTPUT,
)

gemma_sft_pathways_distributed = posttrain.PostTrainJob(
    name="gemma2-lora-pathways",
    model={"uri": "hf://google/gemma-2-2b-it", "token_secret_ref": GEMMA_TOKEN},
    algorithm={"sft": {}},
    data={"train": {"uri": "gs://my-bucket/dialogues.jsonl"}},
    training={
        "epochs": 3,
        "batch_size": 16,
        "lora": {"rank": 4},
        "optimizer": {"learning_rate": 5e-5, "weight_decay": 0.01},
    },
    accelerator={"type": "v5e-16"},
    pathways={"enabled": True},
    output=OUTPUT,
)

gemma4_finetuning = posttrain.PostTrainJob(
    name="gemma4-lora",
    model={"uri": "hf://google/gemma-4-26B-A4B-it", "token_secret_ref": GEMMA_TOKEN},
    algorithm={"sft": {}},
    data={"train": {"uri": "gs://my-bucket/rows.jsonl"}},
    training={"epochs": 1, "batch_size": 8, "sequence_length": 512, "lora": {"rank": 4}},
    accelerator={"type": "v6e-8"},  # `ptctl plan`: 15.9 GiB a chip, a little more than a v5e-8 has
    output=OUTPUT,
)

tunix_sft = posttrain.PostTrainJob(
    name="gemma3-qlora",
    model={"uri": "hf://google/gemma-3-270m-it", "token_secret_ref": GEMMA_TOKEN},
    algorithm={"sft": {}},
    data={"train": {"uri": "gs://my-bucket/en-fr.jsonl"}, "eval": {"uri": "gs://my-bucket/en-fr-held-out.jsonl"}},
    training={
        "steps": 100,
        "batch_size": 32,
        "sequence_length": 256,
        "lora": {"rank": 16, "alpha": 32},
        "quantization": {"weights": "nf4"},
    },
    evaluation={"every_steps": 20},
    accelerator={"type": "v5e-8"},
    output=OUTPUT,
)

tunix_grpo = posttrain.PostTrainJob(
    name="gemma3-grpo",
    model={"uri": "hf://google/gemma-3-1b-it", "token_secret_ref": GEMMA_TOKEN},
    algorithm={"grpo": {"group_size": 2, "beta": 0.08, "clip_low": 0.2, "clip_high": 0.2}},
    data={
        "train": {"uri": "hf://datasets/openai/gsm8k/main", "split": "train"},
        "system_prompt": "Reason between <reasoning> and </reasoning>, then answer between <answer> and </answer>.",
    },
    rewards=[{"builtin": "gsm8k"}, {"builtin": "format", "weight": 0.5}],
    training={
        "steps": 10,
        "batch_size": 16,
        "sequence_length": 1024,
        "lora": {"rank": 64, "alpha": 64},
        "optimizer": {"learning_rate": 3e-6, "max_grad_norm": 0.1, "weight_decay": 0.1},
    },
    rollout={"max_new_tokens": 768, "temperature": 0.9},
    checkpoint={"every_steps": 5},
    accelerator={"type": "v5e-8"},
    output=OUTPUT,
)

hf_dataset_demo = posttrain.PostTrainJob(
    name="hub-data",
    model={"uri": "hf://Qwen/Qwen3-0.6B"},
    algorithm={"sft": {}},
    data={"train": {"uri": "hf://datasets/openai/gsm8k/main", "split": "train"}},  # private: model.token_secret_ref
    accelerator={"type": "v5e-4"},
    output=OUTPUT,
)

JOBS = [gemma3_sft_demo, gemma_sft_pathways_distributed, gemma4_finetuning, tunix_sft, tunix_grpo, hf_dataset_demo]

if __name__ == "__main__":
    client = posttrain.Client()
    for job in JOBS:
        print(client.submit(job).name)
