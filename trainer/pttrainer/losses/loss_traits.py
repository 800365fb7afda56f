"""The traits of an algorithm's loss that decide how its step is compiled, for preflight's formula too: without jax."""

from ptapi.spec import Algorithm, Sdpo

BY_TOKEN = {
    "sft": True, "dpo": False, "kto": False, "reward": False, "distill": False, "ppo": True, "raft": True,
    "sdpo": False,
}  # fmt: skip
"""True if the loss of a token depends on that token alone; for grpo this depends on its settings (`by_token`)."""
OF_SEQUENCES = ("gspo", "gspo-token", "luspo", "vespo")
"""Losses of grpo in which a token's loss depends on others of its sequence."""
WITHOUT_REFERENCE = ("simpo", "orpo")
"""Losses of dpo without a reference."""


def by_token(algorithm: Algorithm) -> bool:
    """Return True if the job's loss of a token depends on that token alone."""
    grpo = algorithm.grpo
    if grpo is None:
        return BY_TOKEN[algorithm.kind]
    corrects_sequences = grpo.sampler_correction.mode.startswith("sequence-") or grpo.off_policy_threshold is not None
    return grpo.loss not in OF_SEQUENCES and not corrects_sequences and grpo.top_entropy_quantile is None


def of_tokens(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the names of a batch's [B, T] float32 arrays besides the common ones; DPO's are one number per row."""
    if not algorithm.learns_from_rewards:
        return ()
    values = () if algorithm.ppo is None else ("values_BT", "returns_BT")
    old = ("old_logps_BT",) if algorithm.updates_per_batch > 1 and algorithm.raft is None else ()
    reference = ("ref_logps_BT",) if algorithm.reference_coefficient > 0 else ()
    bonus = ("entropy_bonus_BT",) if algorithm.grpo is not None and algorithm.grpo.entropy_bonus is not None else ()
    share = ("divergence_share_BT",) if blends(algorithm.sdpo) else ()
    return ("advantages_BT", "sampler_logps_BT", *values, *old, *reference, *bonus, *share)


def blends(sdpo: Sdpo | None) -> bool:
    """Return True if sdpo's loss is part divergence, part policy loss."""
    return sdpo is not None and 0.0 < sdpo.distillation_weight < 1.0
