"""What MaxText's own files set: rl.yml, sft.yml and base.yml at MaxText e591f30, as text, by argument."""

RL = {
    "loss_algo": "grpo", "num_generations": "2", "num_iterations": "1", "grpo_beta": "0.08", "grpo_epsilon": "0.2",
    "num_batches": "4", "batch_size": "1", "train_micro_batch_size": "-1", "max_target_length": "1024",
    "max_prefill_predict_length": "256", "decode_sampling_temperature": "0.9", "decode_sampling_nucleus_p": "1.0",
    "decode_sampling_top_k": "50", "learning_rate": "3e-6", "adam_b1": "0.9", "adam_b2": "0.99",
    "adam_weight_decay": "0.1", "gradient_clipping_threshold": "0.1", "warmup_steps_fraction": "0.1",
    "data_shuffle_seed": "42", "checkpoint_period": "50", "max_num_checkpoints_to_keep": "10", "eval_interval": "10",
    "num_test_batches": "5", "eval_batch_size": "-1", "dataset_name": "openai/gsm8k", "train_split": "train",
    "eval_dataset_name": "", "eval_split": "test", "hf_train_files": "", "hf_eval_files": "",
}  # fmt: skip
SFT = {
    "per_device_batch_size": "12", "gradient_accumulation_steps": "1", "steps": "", "max_target_length": "2048",
    "learning_rate": "2e-5", "adam_b1": "0.9", "adam_b2": "0.95", "adam_weight_decay": "0.1", "adam_eps": "1e-8",
    "gradient_clipping_threshold": "1.0", "warmup_steps_fraction": "0.1", "learning_rate_final_fraction": "0.1",
    "data_shuffle_seed": "0", "checkpoint_period": "10000", "eval_interval": "-1", "packing": "True",
    "sft_train_on_completion_only": "True", "hf_path": "HuggingFaceH4/ultrachat_200k", "train_split": "train_sft",
    "train_data_columns": "['messages']", "hf_train_files": "", "dataset_type": "hf",
}  # fmt: skip
