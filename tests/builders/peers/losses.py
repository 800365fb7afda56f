"""Losses and their gradients on small tensors, as ours compute them: what TRL's numbers are compared with.

Letters: B rows, T tokens, P pairs, D model, V vocabulary. Every case is a loss and its gradient with respect to the
log-probs (policy and preference losses) or to hidden states and head (divergences).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from tests.builders.trainer import specs

from pttrainer.algorithms import grpo
from pttrainer.algorithms.distillation import policy_term, sdpo
from pttrainer.batch import Batch
from pttrainer.data import loss_weights
from pttrainer.losses import policy_gradient, preference, reference_kl, sampler_correction, unpaired_preference
from pttrainer.losses.chunked_logprobs import Head, token_stats
from pttrainer.losses.divergence import Teacher
from pttrainer.losses.loss_traits import WITHOUT_REFERENCE
from pttrainer.losses.policy_gradient import NO_CLIP, Clip
from pttrainer.losses.preference import Coefficients, Side
from pttrainer.losses.sampler_correction import Correction
from pttrainer.models import Model, preset
from pttrainer.rollout import groups
from pttrainer.rollout.groups import Sample
from pttrainer.train_step import entropy, microbatch
from pttrainer.train_step.entropy import EntropyControl, EntropyState
from pttrainer.train_step.objective import HasTeacher
from pttrainer.train_step.optimizer.moving_reference import MovingReference


class Tensors(NamedTuple):
    """What the cases are computed on. A row of length 0 said nothing."""

    mask_BT: np.ndarray
    logps_BT: np.ndarray
    old_BT: np.ndarray
    ref_BT: np.ndarray
    advantages_B: np.ndarray
    hidden_BTD: np.ndarray
    teacher_BTD: np.ndarray
    head_VD: np.ndarray
    teacher_head_VD: np.ndarray
    sampler_BT: np.ndarray


def tensors(
    seed: int, lengths_B: Sequence[int], T: int, D: int, V: int, *, distance: float = 0.35, advantages_B: Any = None
) -> Tensors:
    """distance: of the policy's log-probs from the old one's, standard deviation."""
    random, B = np.random.default_rng(seed), len(lengths_B)
    mask_BT = (np.arange(T) < np.array(lengths_B)[:, None]).astype(np.float32)
    logps_BT = -random.exponential(1.2, (B, T)).astype(np.float32) * mask_BT
    old_BT = (logps_BT + random.normal(0, distance, (B, T)).astype(np.float32)) * mask_BT
    ref_BT = (logps_BT + random.normal(0, 0.5, (B, T)).astype(np.float32)) * mask_BT
    if advantages_B is None:
        advantages_B = random.normal(0, 1.5, B) * (random.random(B) > 0.2)
    rows_BTD, heads_VD = (B, T, D), (V, D)
    hidden_BTD, teacher_BTD = (random.normal(0, 1, rows_BTD).astype(np.float32) for _ in range(2))
    head_VD, teacher_head_VD = (random.normal(0, 1, heads_VD).astype(np.float32) for _ in range(2))
    sampler_BT = (old_BT + random.normal(0, 0.3, (B, T)).astype(np.float32)) * mask_BT
    policy = (mask_BT, logps_BT, old_BT, ref_BT, np.asarray(advantages_B, np.float32))
    return Tensors(*policy, hidden_BTD, teacher_BTD, head_VD, teacher_head_VD, sampler_BT)


FIXED = tensors(7, [9, 4, 1, 7, 2, 5], T=9, D=5, V=23, advantages_B=[1.3, -0.7, 0.0, 2.1, -1.6, 0.4])
"""Those of the numbers that are kept in the repository."""
MAX_NEW = 11
BETA_KL = 0.3

POLICY: dict[str, tuple[str, Clip]] = {
    "grpo": ("grpo", Clip(0.2, 0.2)),
    "grpo-two-sided": ("grpo", Clip(0.2, 0.2)),
    "grpo-kl": ("grpo", Clip(0.2, 0.2)),
    "dr-grpo": ("dr-grpo", Clip(0.2, 0.2)),
    "dapo": ("dapo", Clip(0.2, 0.28)),
    "cispo": ("cispo", Clip(0.2, 1.3)),
    "gspo": ("gspo", Clip(3e-2, 4e-2)),
    "gspo-token": ("gspo-token", Clip(3e-2, 4e-2)),
    "sapo": ("sapo", Clip(*NO_CLIP)),
    "sapo-temperatures": ("sapo", Clip(*NO_CLIP, soft=(0.7, 2.5))),
    "luspo": ("luspo", Clip(3e-2, 4e-2)),
    "vespo": ("vespo", Clip(*NO_CLIP)),
    "vespo-weights": ("vespo", Clip(*NO_CLIP, gamma=((0.5, 1.5), (1.0, 0.7)))),
    "vespo-token-truncate": ("vespo", Clip(*NO_CLIP)),
    "vespo-token-mask": ("vespo", Clip(*NO_CLIP)),
    "grpo-token-truncate": ("grpo", Clip(0.2, 0.2)),
    "dapo-token-mask": ("dapo", Clip(0.2, 0.28)),
    "cispo-sequence-truncate": ("cispo", Clip(0.2, 1.3)),
    "gspo-sequence-mask": ("gspo", Clip(3e-2, 4e-2)),
    "sapo-sequence-mask": ("sapo", Clip(*NO_CLIP)),
    "grpo-off-policy": ("grpo", Clip(0.2, 0.2)),
    "dr-grpo-off-policy": ("dr-grpo", Clip(0.2, 0.2)),
    "dapo-truncated": ("dapo", Clip(0.2, 0.28)),
    "dr-grpo-truncated": ("dr-grpo", Clip(0.2, 0.2)),
}
"""Our variant and clip of each case."""

CORRECTION: dict[str, Correction] = {
    "grpo-token-truncate": Correction("token-truncate", 0.8, 1.3),
    "vespo-token-truncate": Correction("token-truncate", 0.8, 1.3),
    "vespo-token-mask": Correction("token-mask", 0.6, 1.6),
    "dapo-token-mask": Correction("token-mask", 0.75, 1.2),
    "cispo-sequence-truncate": Correction("sequence-truncate", 0.6, 1.5),
    "gspo-sequence-mask": Correction("sequence-mask", 0.0, 1.1),
    "sapo-sequence-mask": Correction("sequence-mask", 0.5, 2.0),
    "dr-grpo-off-policy": Correction("token-truncate", 0.0, 1.3),
}
"""The sampler's correction, where a case has one."""
OFF_POLICY = {"grpo-off-policy": 0.05, "dr-grpo-off-policy": 0.1}
"""The threshold beyond which sequences of negative advantage are left out, where a case has one."""


def truncated(case: str, rows: int) -> list[bool]:
    """Whether each row is a completion that the limit cut, in cases that leave such rows out."""
    return [case.endswith("-truncated") and row % 3 == 1 for row in range(rows)]


PREFERENCE: dict[str, tuple[str, Coefficients]] = {
    "sigmoid": ("sigmoid", Coefficients(0.4)),
    "robust": ("robust", Coefficients(0.4, 0.15)),
    "hinge": ("hinge", Coefficients(0.4)),
    "ipo": ("ipo", Coefficients(0.4)),
    "simpo": ("simpo", Coefficients(2.0, 0.0, 0.6)),
    "simpo-smoothed": ("simpo", Coefficients(2.0, 0.1, 0.6)),
    "orpo": ("orpo", Coefficients(0.4)),
}
"""ORPO is compared without its likelihood term: TRL's is over prompt and answer, the paper's over the answer."""

DIVERGENCE = {"forward-kl": 0.0, "jsd-0.1": 0.1, "jsd-0.5": 0.5, "reverse-kl": 1.0}

LABELLED: dict[str, tuple[str, unpaired_preference.Coefficients]] = {
    "kto": ("kto", unpaired_preference.Coefficients(0.4)),
    "kto-weights": ("kto", unpaired_preference.Coefficients(0.4, 1.3, 0.7)),
    "apo-zero": ("apo-zero", unpaired_preference.Coefficients(0.4)),
}
"""Every second row is good. Of prompts with other answers the policy's log-probs are `old`, the reference's `sampler`,
as far as their mean is above 0."""


class Hindsight(NamedTuple):
    """What a case of sdpo compares. highest: bound on the weight of a token, None for no weight.

    weight: the divergence's beside the policy loss `policy`, whose other settings are in `clip`.
    """

    beta: float
    top_k: int = 0
    sampled_token: bool = False
    highest: float | None = 2.0
    weight: float = 1.0
    policy: str = "grpo"
    clip: Clip = Clip(0.2, 0.2)


SDPO: dict[str, Hindsight] = {
    "sampled-token": Hindsight(1.0, sampled_token=True),
    "sampled-token-unweighted": Hindsight(1.0, sampled_token=True, highest=None),
    "forward-kl": Hindsight(0.0, highest=1.2),
    "jsd-0.5": Hindsight(0.5, highest=None),
    "reverse-kl": Hindsight(1.0),
    "top-2": Hindsight(1.0, top_k=2),
    "top-2-jsd-0.3": Hindsight(0.3, top_k=2, highest=None),
    "blend-0.5": Hindsight(1.0, weight=0.5),
    "blend-0.3-sampled-token-dapo": Hindsight(1.0, sampled_token=True, weight=0.3, policy="dapo"),
    "blend-0.8-top-2-dr-grpo": Hindsight(0.5, top_k=2, weight=0.8, policy="dr-grpo", clip=Clip(0.1, 0.3)),
    "blend-0.5-gspo": Hindsight(0.0, highest=None, weight=0.5, policy="gspo", clip=Clip(3e-2, 4e-2)),
    "policy-loss": Hindsight(1.0, weight=0.0, policy="dapo", clip=Clip(0.2, 0.28)),
}
"""Every third row learns nothing, from the second on; the log-probs before the first update are `old`."""

ENTROPY: dict[str, dict[str, Any]] = {
    "grpo-top-0.2": {"loss": "grpo", "top_entropy_quantile": 0.2},
    "dapo-top-0.5": {"loss": "dapo", "top_entropy_quantile": 0.5},
    "dapo-bonus": {"loss": "dapo", "entropy_bonus": {"coefficient": 0.3}},
    "dr-grpo-bonus-top-0.3": {
        "loss": "dr-grpo", "top_entropy_quantile": 0.3, "entropy_bonus": {"coefficient": 0.7}, "mask_truncated": True
    },
}  # fmt: skip
"""Fields of grpo. The sampler is the policy before the first update, whose log-probs are `old`; the last case leaves
rows out that were cut."""

CLIPS = {"grpo": Clip(0.2, 0.2), "dr-grpo": Clip(0.2, 0.2), "dapo": Clip(0.2, 0.28)}
"""Of the losses' papers."""
ADAPTIVE = EntropyControl(first=0.1, target=1.5, delta=0.15, lowest=0.02, highest=0.35)
SCALES = (0.1, 3.0, 3.0, 3.0, 0.1, 0.1, 0.1, 3.0, 0.1)
"""Of the hidden states of each batch, the larger the less entropy: between the bounds, and beyond both."""

FOLLOWING = MovingReference(every=3, mixup=0.6)
POLICIES = 7
"""Steps of a policy that a reference follows: the rows of hidden states in turn, after those of the teacher."""

KINDS = ("policy", "preference", "labelled", "divergence", "sdpo", "entropy", "reference")


def ours(given: Tensors = FIXED, kinds: Sequence[str] = KINDS) -> dict[str, np.ndarray]:
    """Everything of these kinds, by `kind/case/loss` and `kind/case/gradient…`. Preferences and divergences want rows
    that said something."""
    results: dict[str, Any] = {}
    of_logps = (("policy", POLICY, _policy), ("preference", PREFERENCE, _preference), ("labelled", LABELLED, _labelled))
    for kind, cases, loss_of in of_logps:
        for case in cases if kind in kinds else ():
            name, loss = f"{kind}/{case}", jax.value_and_grad(partial(loss_of, given, case))
            results[f"{name}/loss"], results[f"{name}/gradient"] = loss(given.logps_BT)
    for case, beta in DIVERGENCE.items() if "divergence" in kinds else ():
        of_both = jax.value_and_grad(partial(_divergence, given, beta), argnums=(0, 1))
        loss, (hidden, head) = of_both(given.hidden_BTD, given.head_VD)
        for name, value in (("loss", loss), ("hidden", hidden), ("head", head)):
            results[f"divergence/{case}/{name}"] = value
    for case, hindsight in SDPO.items() if "sdpo" in kinds else ():
        of_both = jax.value_and_grad(partial(_sdpo, given, hindsight), argnums=(0, 1))
        loss, (hidden, head) = of_both(given.hidden_BTD, given.head_VD)
        for name, value in (("loss", loss), ("hidden", hidden), ("head", head)):
            results[f"sdpo/{case}/{name}"] = value
    if "reference" in kinds:
        results["reference/steps"] = _following(given)
    if "entropy" in kinds:
        results |= _adaptive_entropy(given)
    for case in ENTROPY if "entropy" in kinds else ():
        of_both = jax.jit(jax.value_and_grad(partial(_with_entropy, given, ENTROPY[case]), argnums=(0, 1)))
        loss, (hidden, head) = of_both(given.hidden_BTD, given.head_VD)
        for name, value in (("loss", loss), ("hidden", hidden), ("head", head)):
            results[f"entropy/{case}/{name}"] = value
    return {name: np.asarray(value) for name, value in results.items()}


def _policy(given: Tensors, case: str, logps_BT: Array) -> Array:
    name, clip = POLICY[case]
    variant = policy_gradient.VARIANTS[name]
    cut = truncated(case, len(given.mask_BT))
    samples = [Sample([], np.zeros(0), not is_cut, "", {}, 0.0) for is_cut in cut]
    trained_BT = groups.without_truncated(given.mask_BT, samples)
    old_BT, mask_BT = jnp.asarray(given.old_BT), jnp.asarray(trained_BT)
    advantages_BT, sampler_BT = given.advantages_B[:, None] * mask_BT, jnp.asarray(given.sampler_BT)
    importance_BT = jnp.ones_like(mask_BT)
    if case in CORRECTION:
        importance_BT = sampler_correction.weights(old_BT, sampler_BT, mask_BT, CORRECTION[case])
    anchor_BT, factor_BT = sampler_correction.anchor(variant.old, old_BT, sampler_BT, importance_BT)
    loss_BT, _ = variant.loss(logps_BT, anchor_BT, advantages_BT, mask_BT, clip)
    ratio_BT = jnp.exp(policy_gradient.log_ratio(logps_BT, old_BT))
    if case == "grpo-two-sided":
        # TRL bounds the ratio itself, for A < 0 the same as bounding −c·A; for A > 0 the clip is below it anyway.
        loss_BT = policy_gradient.surrogate(ratio_BT, advantages_BT, clip._replace(dual=1.4))
    if case == "grpo-kl":
        loss_BT = loss_BT + BETA_KL * reference_kl.kl("k3", logps_BT, jnp.asarray(given.ref_BT), ratio_BT)
    loss_BT = loss_BT * factor_BT
    if case in OFF_POLICY:
        loss_BT = loss_BT * sampler_correction.kept(logps_BT, sampler_BT, advantages_BT, mask_BT, OFF_POLICY[case])
    return jnp.sum(loss_BT * variant.weights(trained_BT, MAX_NEW))


def _preference(given: Tensors, case: str, logps_BT: Array) -> Array:
    name, coefficients = PREFERENCE[case]
    variant = preference.VARIANTS[name]
    sums_B = jnp.sum(logps_BT * given.mask_BT, axis=1)
    refs_B = given.ref_BT.sum(axis=1) if name not in WITHOUT_REFERENCE else np.zeros(len(sums_B), np.float32)
    P = len(sums_B) // 2
    halves = (slice(P), slice(P, 2 * P))
    chosen, rejected = (Side(sums_B[s], jnp.asarray(refs_B[s]), given.mask_BT.sum(1)[s]) for s in halves)
    loss_P = variant.loss(chosen, rejected, coefficients)
    return jnp.mean(loss_P + chosen.mean_P if name == "orpo" else loss_P)


def labels(given: Tensors) -> np.ndarray:
    """1 for good rows, [B]."""
    return (np.arange(len(given.mask_BT)) % 2).astype(np.float32)


def _labelled(given: Tensors, case: str, logps_BT: Array) -> Array:
    name, coefficients = LABELLED[case]
    ratios_B = jnp.sum(logps_BT * given.mask_BT, axis=1) - given.ref_BT.sum(axis=1)
    kl = unpaired_preference.kl((given.old_BT - given.sampler_BT).sum(axis=1)) if name == "kto" else 0.0
    return jnp.mean(unpaired_preference.loss(ratios_B, jnp.asarray(labels(given)), kl, coefficients))


class _FixedTeacher(Model):
    """A teacher that says what it is given."""

    def __init__(self, config: Any, given: Tensors) -> None:
        super().__init__(config)
        self._given = given

    def forward(self, params: Any, tokens_BT: Array, positions_BT: Array, segment_ids_BT: Array) -> Array:
        return jnp.asarray(self._given.teacher_BTD)

    def head(self, params: Any) -> Array:
        return jnp.asarray(self._given.teacher_head_VD)


def _divergence(given: Tensors, beta: float, hidden_BTD: Array, head_VD: Array) -> Array:
    config = preset("tiny")
    zeros = np.zeros(given.mask_BT.shape, np.int32)
    batch = Batch(zeros, zeros, zeros, zeros, jnp.asarray(given.mask_BT), None)
    teacher = Teacher(_FixedTeacher(config, given), beta, chunk=2)
    stats = teacher.stats({}, Model(config), jnp.asarray(hidden_BTD), jnp.asarray(head_VD), batch)
    return jnp.sum(stats.divergence_BT) / given.mask_BT.sum()


def sampled_ids(given: Tensors) -> np.ndarray:
    """The tokens that were sampled, [B, T]."""
    shape = given.mask_BT.shape
    return (np.arange(np.prod(shape), dtype=np.int32).reshape(shape) * 5) % len(given.head_VD)


def learning(given: Tensors) -> np.ndarray:
    """1 for rows that learn, [B, 1]."""
    return (np.arange(len(given.mask_BT)) % 3 != 1).astype(np.float32)[:, None]


def _sdpo(given: Tensors, case: Hindsight, hidden_BTD: Array, head_VD: Array) -> Array:
    if case.weight < 1:
        return _blended(given, case, hidden_BTD, head_VD)
    config = preset("tiny")
    zeros = np.zeros(given.mask_BT.shape, np.int32)
    mask_BT = given.mask_BT * learning(given)
    batch = Batch(zeros, jnp.asarray(sampled_ids(given)), zeros, zeros, jnp.asarray(mask_BT), None)
    teacher = Teacher(
        _FixedTeacher(config, given), case.beta, case.top_k, 2, top_of="student", sampled_token=case.sampled_token
    )
    stats = teacher.stats({}, Model(config), jnp.asarray(hidden_BTD), jnp.asarray(head_VD), batch)
    loss_BT = stats.divergence_BT
    if case.highest is not None:
        loss_BT = loss_BT * sdpo.clipped_weight(stats.logps_BT, jnp.asarray(given.old_BT), case.highest)
    # Here a row that learns nothing is no sequence of the mean; TRL counts it.
    return jnp.sum(loss_BT * loss_weights.sequence_mean(mask_BT)) * learning(given).mean()


def _blended(given: Tensors, case: Hindsight, hidden_BTD: Array, head_VD: Array) -> Array:
    """The whole loss of a job, from hidden states. The sampler is the policy before the first update."""
    spec = specs.tiny(
        {
            "sdpo": {
                "beta": case.beta, "top_k": case.top_k, "highest_ratio": case.highest,
                "signal": "sampled-token" if case.sampled_token else "distribution", "distillation_weight": case.weight,
                "policy": {"loss": case.policy, "clip_low": case.clip.low, "clip_high": case.clip.high},
            }
        },
        rollout={"max_new_tokens": MAX_NEW},
    )  # fmt: skip
    of = spec.algorithm.sdpo
    assert of is not None
    teacher = sdpo.teacher_of(of, _FixedTeacher(preset("tiny"), given))
    objective = sdpo.Loss(spec, replace(teacher, chunk=2), {})
    student = SimpleNamespace(
        config=preset("tiny"), head=lambda params: params, capped=lambda logits: logits, sums_embedding=False
    )
    taught = objective.teacher if isinstance(objective, HasTeacher) else None
    program: Any = SimpleNamespace(objective=objective, model=student, teacher=taught)
    zeros, old_BT, mask_BT = np.zeros(given.mask_BT.shape, np.int32), jnp.asarray(given.old_BT), given.mask_BT
    weight_BT = policy_term.weights(of, mask_BT, MAX_NEW)
    # Here a row that learns nothing is no sequence of the divergence's mean; TRL counts it.
    counted = case.weight * float(learning(given).mean())
    share_BT = policy_term.divergence_share(mask_BT * learning(given), weight_BT, counted) if case.weight else None
    rows = zeros, jnp.asarray(sampled_ids(given)), zeros, zeros, jnp.asarray(mask_BT), jnp.asarray(weight_BT)
    advantages_BT = jnp.asarray(given.advantages_B[:, None] * mask_BT)
    batch = Batch(*rows, advantages_BT, old_BT, old_BT, divergence_share_BT=share_BT)
    params: Any = jnp.asarray(head_VD)
    return microbatch._of_tokens(program, params, jnp.asarray(hidden_BTD), batch, {})[0]


def _with_entropy(
    given: Tensors, case: dict[str, Any], hidden_BTD: Array, head_VD: Array, factor: Array | float = 1.0
) -> Array:
    """The whole loss of a job, from hidden states: entropy and log-probs are of one thing. factor: of the bonus."""
    spec = specs.tiny({"grpo": case}, rollout={"max_new_tokens": MAX_NEW})
    program: Any = SimpleNamespace(objective=grpo.Loss(spec), model=Model(preset("tiny")))
    of = spec.algorithm.grpo
    assert of is not None
    cut_B = np.array(truncated("-truncated" if of.mask_truncated else "", len(given.mask_BT)))
    mask_BT = given.mask_BT * ~cut_B[:, None]
    weight_BT = policy_gradient.VARIANTS[of.loss].weights(mask_BT, MAX_NEW)
    bonus = None if of.entropy_bonus is None else entropy.bonus(mask_BT, weight_BT, of.entropy_bonus.coefficient)
    zeros, old_BT = np.zeros(mask_BT.shape, np.int32), jnp.asarray(given.old_BT)
    advantages_BT = given.advantages_B[:, None] * mask_BT
    rows = zeros, jnp.asarray(sampled_ids(given)), zeros, zeros, jnp.asarray(mask_BT), jnp.asarray(weight_BT)
    batch = Batch(
        *rows, jnp.asarray(advantages_BT), old_BT, old_BT, entropy_bonus_BT=None if bonus is None else bonus * factor
    )
    loss, _ = microbatch._of_policy(program, jnp.asarray(hidden_BTD), jnp.asarray(head_VD), batch)
    return loss


def _adaptive_entropy(given: Tensors) -> dict[str, Any]:
    """The loss and the coefficient after each of some batches, whose predictions differ in their entropy."""
    case = {"loss": "dapo", "entropy_bonus": {"coefficient": 1.0}}
    ids_BT, mask_BT = jnp.asarray(sampled_ids(given)), jnp.asarray(given.mask_BT)

    @jax.jit
    def step(state: EntropyState, scale: Array) -> tuple[Array, EntropyState]:
        hidden_BTD, head_VD = scale * given.hidden_BTD, jnp.asarray(given.head_VD)
        loss = _with_entropy(given, case, hidden_BTD, head_VD, ADAPTIVE.applied(state))
        stats = token_stats(hidden_BTD, head_VD, ids_BT, mask_BT, Head(entropy=True))
        return loss, ADAPTIVE.updated(state, jnp.sum(stats.entropy_BT) / jnp.sum(mask_BT))

    state, values, coefficients = ADAPTIVE.new_state(), [], []
    for scale in SCALES:
        value, state = step(state, jnp.float32(scale))
        values.append(value)
        coefficients.append(state.coefficient)
    return {"entropy/adaptive/loss": np.array(values), "entropy/adaptive/coefficient": np.array(coefficients)}


def _following(given: Tensors) -> np.ndarray:
    """The reference after each step."""
    reference, references, updated = {"w": jnp.asarray(given.teacher_BTD[0])}, [], jax.jit(FOLLOWING.updated)
    for step in range(POLICIES):
        policy = {"w": jnp.asarray(given.hidden_BTD[step % len(given.hidden_BTD)])}
        reference = updated(reference, policy, jnp.int32(step + 1))
        references.append(np.asarray(reference["w"]))
    return np.stack(references)
