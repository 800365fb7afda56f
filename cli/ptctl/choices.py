"""Words that flags accept. They stand here, beside the models that define them, because `--help` may not import
those; a test compares the two."""

from __future__ import annotations

GRPO_LOSSES = ("grpo", "dr-grpo", "dapo", "gspo", "gspo-token", "cispo", "rloo")
ALGORITHMS = ("sft", "dpo", *GRPO_LOSSES, "distill", "ppo")
BUILTIN_REWARDS = ("gsm8k", "format", "math", "length", "code", "tool-use", "choice", "exact")
