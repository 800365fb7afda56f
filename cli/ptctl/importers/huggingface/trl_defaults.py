"""What TRL 1.16.0 with transformers 5.23.0 does where a word is not given; tests/parity compares it with both."""

from typing import Any

VERSION = "1.16.0"
_TRAINING: dict[str, Any] = {
    "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "gradient_accumulation_steps": 1,
    "num_train_epochs": 3.0, "max_steps": -1, "lr_scheduler_type": "linear", "warmup_steps": 0,
    "optim": "adamw_torch_fused", "weight_decay": 0.0, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8,
    "max_grad_norm": 1.0, "label_smoothing_factor": 0.0, "eval_strategy": "no", "save_strategy": "steps",
    "save_steps": 500, "seed": 42, "logging_steps": 10, "report_to": "none",
}  # fmt: skip
_PROGRAM: dict[str, Any] = {
    "dataset_train_split": "train", "dataset_test_split": "test", "model_revision": "main", "dtype": "float32",
    "use_peft": False, "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.05, "load_in_4bit": False,
    "load_in_8bit": False, "use_rslora": False, "use_dora": False,
}  # fmt: skip
_SAMPLING: dict[str, Any] = {
    "learning_rate": 1e-6, "max_completion_length": 512, "temperature": 1.0, "top_p": 1.0, "top_k": 0,
    "repetition_penalty": 1.0, "num_iterations": 1, "epsilon": 0.2, "mask_truncated_completions": False,
    "use_vllm": False,
}  # fmt: skip
BY_TRAINER: dict[str, dict[str, Any]] = {
    "sft": {
        "learning_rate": 2e-5, "max_length": 1024, "packing": False, "packing_strategy": "bfd",
        "assistant_only_loss": False, "loss_type": "nll", "dataset_text_field": "text", "truncation_mode": "keep_start",
    },
    "dpo": {
        "learning_rate": 1e-6, "max_length": 1024, "beta": 0.1, "loss_type": ["sigmoid"], "label_smoothing": 0.0,
        "f_divergence_type": "reverse_kl", "truncation_mode": "keep_start",
    },
    "kto": {
        "learning_rate": 1e-6, "max_length": 1024, "beta": 0.1, "loss_type": "kto", "desirable_weight": 1.0,
        "undesirable_weight": 1.0,
    },
    "reward": {"learning_rate": 1e-4, "max_length": 1024},
    "grpo": {
        **_SAMPLING, "num_generations": 8, "beta": 0.0, "loss_type": "dapo", "importance_sampling_level": "token",
        "scale_rewards": "group", "multi_objective_aggregation": "sum_then_normalize",
        "vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": "sequence_mask",
        "vllm_importance_sampling_clip_max": 3.0, "top_entropy_quantile": 1.0, "entropy_coef": 0.0,
        "use_adaptive_entropy": False, "entropy_coef_min": 0.0, "entropy_coef_max": 1.0, "entropy_coef_delta": 0.005,
        "entropy_target": 0.2, "sync_ref_model": False, "ref_model_mixup_alpha": 0.6, "ref_model_sync_steps": 512,
    },
    "rloo": {**_SAMPLING, "num_generations": 2, "beta": 0.05, "normalize_advantages": False},
}  # fmt: skip
"""By trainer: its own config's words."""
DEFAULTS = {trainer: {**_TRAINING, **_PROGRAM, **own} for trainer, own in BY_TRAINER.items()}
"""By trainer: all words of its program."""
# Trainers that TRL keeps under trl.experimental; their words are DPO's but for these.
DEFAULTS["orpo"] = {**DEFAULTS["dpo"], "loss_type": ["orpo"]}
DEFAULTS["cpo"] = {**DEFAULTS["dpo"], "loss_type": "sigmoid", "simpo_gamma": 0.5, "cpo_alpha": 1.0}
