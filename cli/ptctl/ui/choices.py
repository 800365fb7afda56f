"""Words that flags accept, and what they stand for. Those of the spec stand here beside the models that define them,
because `--help` may not import those; a test compares the two."""

from __future__ import annotations

GRPO_LOSSES = ("grpo", "dr-grpo", "dapo", "gspo", "gspo-token", "cispo", "rloo")
ALGORITHMS = ("sft", "dpo", *GRPO_LOSSES, "distill", "ppo")
BUILTIN_REWARDS = ("gsm8k", "format", "math", "length", "code", "tool-use", "choice", "exact")

STATUS_PHASES = {
    "FINISHED": ("Succeeded", "Failed"),
    "RUNNING": ("Starting", "Running", "Restarting"),
    "QUEUED": ("Pending", "Preflight", "Queued", "Provisioning"),
    "FAILED": ("Failed",),
    "SUCCESSFUL": ("Succeeded",),
    "SUSPENDED": ("Suspended",),
}
"""XPK's words for a status, in our phases."""
STATUS_WORDS = ("EVERYTHING", *STATUS_PHASES)

GOAL_PHASES = {
    "complete": ("Succeeded",),
    "failed": ("Failed",),
    "finished": ("Succeeded", "Failed"),
    "running": ("Running", "Succeeded"),
    "suspended": ("Suspended",),
    "deleted": (),
}
"""What can be waited for, and the phases in which it is so. A job that has succeeded was running: nobody waits for
ever."""
