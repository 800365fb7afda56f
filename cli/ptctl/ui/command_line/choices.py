"""Values that flags accept, and what they stand for.

The spec's values are repeated here because `--help` must not import its models; a test compares the two.
"""

GRPO_LOSSES = (
    *("grpo", "dr-grpo", "dapo", "gspo", "gspo-token", "luspo"),
    *("cispo", "sapo", "vespo", "dppo", "dppo-kl", "rloo"),
)
ALGORITHMS = ("sft", "dpo", "kto", "reward", *GRPO_LOSSES, "distill", "ppo", "raft", "sdpo")
FIRST_JOBS = (
    "sft",
    "lora",
    "dpo",
    "kto",
    "reward",
    "grpo",
    "ppo",
    "raft",
    "sdpo",
    "distill",
    "tools",
    "images",
    "maxtext",
)
"""What `ptctl init` writes jobs for."""
EVAL_TASKS = ("gsm8k", "choice", "labels", "code")
BUILTIN_REWARDS = ("gsm8k", "format", "math", "length", "code", "tool-use", "choice", "exact")

STATUS_PHASES = {
    "FINISHED": ("Succeeded", "Failed"),
    "RUNNING": ("Starting", "Running", "Restarting"),
    "QUEUED": ("Pending", "Preflight", "Queued", "Provisioning"),
    "FAILED": ("Failed",),
    "SUCCESSFUL": ("Succeeded",),
    "SUSPENDED": ("Suspended",),
}
"""XPK's status names, and the phases that they select."""
STATUS_NAMES = ("EVERYTHING", *STATUS_PHASES)

GOAL_PHASES = {
    "complete": ("Succeeded",),
    "failed": ("Failed",),
    "finished": ("Succeeded", "Failed"),
    "running": ("Running", "Succeeded"),
    "suspended": ("Suspended",),
    "deleted": (),
}
"""The goals of `wait` and the phases that meet them. Succeeded meets `running`, so that no wait goes on for ever."""
