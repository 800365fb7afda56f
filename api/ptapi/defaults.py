"""Default hyperparameters that a job may leave unset.

posttrain's trainer uses them, and the operator passes them to MaxText, so that a job means the same to both.
"""

from typing import NamedTuple

LEARNING_RATES = {
    "sft": 2e-5, "dpo": 1e-6, "kto": 1e-6, "reward": 1e-5, "grpo": 1e-6, "distill": 1e-6, "ppo": 1e-6, "raft": 1e-6,
    "sdpo": 1e-6,
}  # fmt: skip
"""Peak learning rates by algorithm: full fine-tuning of 1 to 70 B models with AdamW."""


class Adam(NamedTuple):
    """Decay rates of the two moments, and the term added to the denominator."""

    beta1: float
    beta2: float
    eps: float


ADAMW = Adam(0.9, 0.95, 1e-8)
"""0.95 recovers faster from loss spikes than the paper's 0.999 (arXiv 1711.05101)."""

CLIPS: dict[str, tuple[float, float]] = {
    "grpo": (0.2, 0.2),
    "dr-grpo": (0.2, 0.2),
    "dapo": (0.2, 0.28),
    "gspo": (3e-4, 4e-4),
    "gspo-token": (3e-4, 4e-4),
    "luspo": (2e-3, 2.5e-3),
    "cispo": (0.2, 5.0),
    "dppo": (0.15, 0.15),
    "dppo-kl": (0.05, 0.05),
    "rloo": (0.2, 0.2),
}
"""ε and ε_high by `algorithm.grpo.loss`: the values of the loss's paper. sapo and vespo clip nothing."""

SOFT_CLIP = (1.0, 1.05)
"""sapo's temperatures for positive advantages and for others (arXiv 2511.20347)."""

GAMMA_WEIGHT = ((2.0, 3.0), (3.0, 2.0))
"""vespo's k and λ for advantages of at least 0, and for others (arXiv 2602.10693)."""
