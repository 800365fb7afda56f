"""What of an algorithm's loss decides how its step is compiled, and what preflight's formula asks too: without jax."""

from __future__ import annotations

from ptapi.spec import Algorithm

BY_TOKEN = {"sft": True, "dpo": False, "distill": False, "ppo": True}
"""Whether the loss of a token depends on that token alone; of grpo, its loss says (`by_token`)."""
OF_SEQUENCES = ("gspo", "gspo-token")
"""Losses of grpo in which a token's loss looks at others of its sequence."""
WITHOUT_REFERENCE = ("simpo", "orpo")
"""Losses of dpo that compare the policy with nothing."""


def by_token(algorithm: Algorithm) -> bool:
    """Whether the job's loss of a token depends on that token alone."""
    if algorithm.grpo is not None:
        return algorithm.grpo.loss not in OF_SEQUENCES
    return BY_TOKEN[algorithm.kind]


def of_tokens(algorithm: Algorithm) -> tuple[str, ...]:
    """Arrays of a batch, [B, T] and float32, beside those that all algorithms have. (DPO's are one number a row.)"""
    if not algorithm.learns_from_rewards:
        return ()
    values = () if algorithm.ppo is None else ("values_BT", "returns_BT")
    old = ("old_logps_BT",) if algorithm.updates_per_batch > 1 else ()
    reference = ("ref_logps_BT",) if algorithm.reference_coefficient > 0 else ()
    return ("advantages_BT", "sampler_logps_BT", *values, *old, *reference)
