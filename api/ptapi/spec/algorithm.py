"""The algorithm: exactly one, with its variant and hyperparameters.

The defaults are those of the papers listed in `docs/reference/algorithms.md`.
"""

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import Fraction, LearningRate, ModelUri, NonNegativeInt, PositiveInt, Revision, SpecModel
from ptapi.spec.pods.services import ServiceName

GrpoLoss = Literal[
    "grpo", "dr-grpo", "dapo", "gspo", "gspo-token", "luspo", "cispo", "sapo", "vespo", "dppo", "dppo-kl", "rloo"
]
Advantage = Literal["group", "centered", "leave-one-out", "batch"]
Coefficient = Annotated[float, Field(ge=0.0, le=1000.0)]


class Sft(SpecModel):
    """Supervised fine-tuning: cross-entropy over assistant tokens, normalised by the global token count."""

    loss_on_prompt: bool = False
    """Also train on prompt tokens. Off: only on the assistant's tokens, including the end-of-turn token."""
    loss: Literal["nll", "dft"] = "nll"
    """`dft` (arXiv 2508.05629) weights a token's negative log-likelihood by the probability that the model gives it,
    which damps tokens that the model finds very unlikely; TRL's `loss_type`."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of the target distribution spread over the vocabulary; TRL's `label_smoothing_factor`."""
    z_loss: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Weight of the squared log-partition, which keeps logits from drifting; PaLM's is 1e-4."""
    packing: bool = True
    """Pack several examples into a row, with block-diagonal attention and restarted positions: less padding."""


class Dpo(SpecModel):
    """Preference optimisation (arXiv 2305.18290) and its relatives."""

    loss: Literal["sigmoid", "robust", "ipo", "hinge", "orpo", "simpo"] = "sigmoid"
    """`sigmoid` is DPO; `orpo` and `simpo` need no reference model. See docs/reference/algorithms.md."""
    beta: Annotated[float, Field(gt=0.0, le=1000.0)] | None = None
    """β: strength of the pull towards the reference (orpo: weight of the odds ratio). Unset: 0.1; simpo 2."""
    label_smoothing: Annotated[float, Field(ge=0.0, le=0.49)] = 0.0
    """Probability that a preference is mislabelled: with sigmoid conservative DPO, with robust its unbiased form."""
    margin: Annotated[float, Field(ge=0.0, le=1000.0)] | None = None
    """γ: simpo's target margin between the two completions; the paper uses about half of β. Unset: 1."""


class Kto(SpecModel):
    """Kahneman-Tversky optimisation (arXiv 2402.01306): from answers that are each labelled good or bad, no pairs."""

    loss: Literal["kto", "apo-zero"] = "kto"
    """`kto` compares an answer's log-ratio with an estimate of the KL to the reference; `apo-zero` (arXiv 2408.06266)
    with 0, which needs no estimate and raises the probability of good answers itself."""
    beta: Annotated[float, Field(gt=0.0, le=1000.0)] = 0.1
    """β: strength of the pull towards the reference."""
    desirable_weight: Annotated[float, Field(gt=0.0, le=1000.0)] = 1.0
    """λ_D: weight of good answers. The paper wants weight × number of good answers to be 1 to 4/3 of the same of bad
    ones: where good answers are a tenth, 9 to 12."""
    undesirable_weight: Annotated[float, Field(gt=0.0, le=1000.0)] = 1.0
    """λ_U: weight of bad answers."""


class RewardModelTraining(SpecModel):
    """Trains a reward model on preferences (Bradley-Terry; arXiv 1909.08593): a score of a whole text, for `rewards`.

    The output head is replaced by a linear one with a single output, which begins at 0 unless the model has one.
    """

    centering: Annotated[float, Field(ge=0.0, le=1000.0)] = 0.0
    """Weight of the squared sum of a pair's two scores (arXiv 2312.09244), which keeps scores around 0; 0.01 is usual.
    0: only differences of scores mean anything."""


class DynamicSampling(SpecModel):
    """DAPO's dynamic sampling: replaces groups whose rewards are all equal by new prompts."""

    max_tries: PositiveInt = 3
    """How many times a step may draw replacement prompts before it trains on the groups that it has."""


class Overlong(SpecModel):
    """DAPO's soft overlong penalty, counted in tokens, with a floor of -1."""

    buffer_tokens: PositiveInt = 64
    """The penalty grows linearly from 0 to -1 over the last `bufferTokens` of `rollout.maxNewTokens`."""


class SamplerCorrection(SpecModel):
    """Importance weights for what the trainer finds more or less likely than the sampler did."""

    mode: Literal["token-truncate", "token-mask", "sequence-truncate", "sequence-mask"] = "token-truncate"
    """Whose ratio of the trainer's to the sampler's probability is the weight: each token's, or that of the whole
    sequence for all its tokens. Outside `lowest` and `highest`, `truncate` cuts the weight there; `mask` sets it to 0,
    so that the token or sequence teaches nothing."""
    lowest: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Smallest weight. 0: no bound below."""
    highest: Annotated[float, Field(ge=1.0, le=1e6)] = 2.0
    """Largest weight. The ratio of a sequence multiplies those of its tokens, so it leaves any bounds much sooner."""


class SoftClip(SpecModel):
    """The temperatures of sapo's gate: the higher, the sooner the gradient fades away from ratio 1."""

    positive: Annotated[float, Field(ge=0.01, le=100.0)] = 1.0
    """τ for positive advantages."""
    negative: Annotated[float, Field(ge=0.01, le=100.0)] = 1.05
    """τ for all others; larger, because their gradients raise every other token and so spread instability."""


class GammaWeight(SpecModel):
    """vespo's weight φ(W) = exp(λ + k·log W − λ·W) of a sequence whose ratio is W: 1 at W = 1, and less around it."""

    positive_power: Annotated[float, Field(ge=0.0, le=10.0)] = 2.0
    """k for advantages of at least 0: the higher, the less weight below W = 1."""
    positive_decay: Annotated[float, Field(ge=0.1, le=100.0)] = 3.0
    """λ for advantages of at least 0: the higher, the less weight above W = 1."""
    negative_power: Annotated[float, Field(ge=0.0, le=10.0)] = 3.0
    """k for negative advantages; larger, because what was bad and has become unlikely needs no further push."""
    negative_decay: Annotated[float, Field(ge=0.1, le=100.0)] = 2.0
    """λ for negative advantages."""


class AdaptiveEntropy(SpecModel):
    """A coefficient that follows the entropy (Skywork-OR1, arXiv 2505.22312)."""

    target: Annotated[float, Field(ge=0.0, le=100.0)] = 0.2
    """Nats. While the mean entropy of a batch is at most this, the coefficient grows by `delta` a step, and the next
    step has the bonus; above, it shrinks, and there is none. Set it near the entropy of the first steps."""
    delta: Annotated[float, Field(gt=0.0, le=1000.0)] = 0.005
    """Change per step."""
    lowest: Coefficient = 0.0
    """Smallest coefficient."""
    highest: Coefficient = 1.0
    """Largest coefficient."""


class EntropyBonus(SpecModel):
    """A bonus on the mean entropy of the trained tokens, against a policy that becomes certain too soon."""

    coefficient: Coefficient = 0.0
    """c: the loss is less by c times the mean entropy, for every `loss` alike. With `adaptive` the first one."""
    adaptive: AdaptiveEntropy | None = None
    """Let the coefficient follow the entropy. Unset: it is constant."""


class ReferenceSync(SpecModel):
    """A reference that follows the policy (TR-DPO, arXiv 2404.09656)."""

    every_steps: PositiveInt = 512
    """τ: optimizer steps between two updates of the reference."""
    mixup: Annotated[float, Field(gt=0.0, le=1.0)] = 0.6
    """α: share of the policy in the new reference; 1 replaces it."""


class Grpo(SpecModel):
    """Group-relative policy optimisation (arXiv 2402.03300) and its variants."""

    loss: GrpoLoss = "grpo"
    """The policy loss; docs/reference/algorithms.md has each formula."""
    group_size: Annotated[int, Field(ge=2, le=4096)] = 8
    """Samples per prompt (G). 8 is the smallest that gives a stable group baseline in published recipes."""
    advantage: Advantage | None = None
    """How advantages are computed from rewards. Unset: as in the loss's paper."""
    combine_rewards: Literal["sum", "z-scores"] = "sum"
    """How several rewards are combined. `sum`: their weighted sum. `z-scores`: each is first z-scored within its group,
    so that its weight counts and not its scale or variance (arXiv 2601.05242). `reward` in the log is the plain sum
    either way."""
    clip_low: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """ε: the ratio is clipped below 1 − ε; not with cispo, sapo or vespo. With dppo δ, how far a token's probability
    may fall below the sampler's. Unset: the loss's paper (0.2; gspo 3e-4; luspo 2e-3; dppo 0.15; dppo-kl 0.05)."""
    clip_high: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    """ε_high: clipped above 1 + ε_high (cispo: at ε_high; dppo: δ above). Unset: the paper's (0.2; dapo 0.28; gspo
    4e-4; luspo 2.5e-3; cispo 5; dppo 0.15; dppo-kl 0.05)."""
    dual_clip: Annotated[float, Field(gt=1.0, le=100.0)] | None = None
    """Bound c of the two-sided clip for negative advantages; 3 is usual; not with cispo, sapo, vespo or dppo. Unset:
    off."""
    soft_clip: SoftClip | None = None
    """sapo's soft clip, in place of the bounds above. Unset: the paper's temperatures."""
    gamma_weight: GammaWeight | None = None
    """vespo's weight, in place of the bounds above. Unset: the paper's numbers."""
    sampler_correction: SamplerCorrection = SamplerCorrection()
    """Correction for a sampler that is not the trainer: other arithmetic, or older weights."""
    off_policy_threshold: Annotated[float, Field(gt=0.0, le=1000.0)] | None = None
    """δ, nats: a sequence of negative advantage is left out of the policy loss once the mean of log sampler − log
    policy over its tokens exceeds δ (arXiv 2512.02556). Unset: off."""
    top_entropy_quantile: Fraction | None = None
    """ρ: only this share of the tokens, those of highest entropy in the batch, has a policy loss (arXiv 2506.01939, 0.2
    there). Unset: all."""
    entropy_bonus: EntropyBonus | None = None
    """Bonus on entropy. Unset: none."""
    beta: Coefficient = 0.0
    """Coefficient of the KL to the reference model. 0: no reference model is held in memory."""
    reference_sync: ReferenceSync | None = None
    """Let the reference follow the policy; all weights must be trained. Unset: it is the model before the first
    step."""
    kl: Literal["k2", "k3"] = "k2"
    """Estimator of the KL in the loss: k2 = ½(lp − ref)² or k3. Both are weighted by the policy's probability by the
    sampler's and have the reverse KL's gradient, for stale samples too; they differ in the loss that is logged. k1 is
    refused."""
    updates_per_batch: Annotated[int, Field(ge=1, le=64)] = 1
    """Optimizer updates per rollout batch (μ). 1: every update is on-policy."""
    dynamic_sampling: DynamicSampling | None = None
    """Replace groups whose rewards are all equal. Unset: off; such groups are counted and logged."""
    overlong: Overlong | None = None
    """Soft penalty for completions near the length limit. Unset: off."""
    mask_truncated: bool = False
    """Completions cut at `maxNewTokens` have no loss, and no token in its mean (DAPO's overlong filtering); their
    rewards still count in their groups."""


class Critic(SpecModel):
    """PPO's value function, which estimates the return at every token."""

    kind: Literal["head", "model"] = "head"
    """`head`: a linear value head on the policy's last hidden state; no second model in memory. `model`: a separate
    model with such a head, which takes the policy's memory again and keeps the two tasks apart; with `training.lora`,
    separate adapters of the same rank and targets on the policy's base weights."""
    uri: ModelUri | None = None
    """The critic's initial weights: the `export/critic` of an earlier run; for a critic `model` also any model in
    Hugging Face's layout with the policy's tokens. Unset: the policy's initial weights, with a value head that predicts
    0."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` critic."""
    learning_rate: LearningRate | None = None
    """Peak learning rate of the critic's weights, with the schedule of `training`. Unset: ten times the
    default of a policy whose weights are all trained (1e-5 instead of 1e-6), because the critic starts from scratch."""


class Ppo(SpecModel):
    """Proximal policy optimisation (arXiv 1707.06347) with a critic and generalised advantages (1506.02438)."""

    samples_per_prompt: Annotated[int, Field(ge=1, le=4096)] = 1
    """Completions per prompt. 1: the critic is the baseline, so more prompts help more than more samples."""
    gamma: Fraction = 1.0
    """γ: discount per token. 1: a correct answer has the same return whatever its length."""
    gae_lambda: Fraction = 0.95
    """λ: 1 relies on the reward alone (no bias, most variance), 0 on the critic alone. 0.95 as in the papers: a reward
    at the end of a few hundred tokens still reaches the first of them through the critic, with far less variance."""
    clip: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    """ε: the ratio of new to old probability is clipped to 1 ± ε."""
    value_clip: Annotated[float, Field(ge=0.0, le=1000.0)] = 0.2
    """Bound on the change of the critic's values from those before the batch's first update; 0: no bound. Raise it if
    rewards are much larger than 1."""
    value_coefficient: Coefficient = 0.1
    """Weight of the value loss relative to the policy loss. With critic `head` both train the same layers, and 0.1
    keeps the policy's share larger; with `model` it only scales the critic's gradient before clipping."""
    kl_coefficient: Coefficient = 0.0
    """β of the penalty −β·(log π − log π_ref) added to each token's reward (the k1 estimator: correct inside a
    reward, because no gradient flows through it). 0: no reference model is held in memory."""
    updates_per_batch: Annotated[int, Field(ge=1, le=64)] = 4
    """Optimizer updates per rollout batch. Clipping has an effect from the second on; 4 is the usual number."""
    whiten_advantages: bool = True
    """Normalise the advantages of the batch's tokens to mean 0 and standard deviation 1."""
    bootstrap_truncated: bool = False
    """The return after `maxNewTokens` truncates a completion. false: 0, as if it had ended, because length is part of
    most tasks. true: the critic's value of the last state, because the completion would have continued (arXiv
    1712.00378)."""
    critic: Critic = Critic()
    """The critic; its weights are checkpointed, and exported next to the policy's, in `export/critic`."""


class Raft(SpecModel):
    """Filtered self-training (RAFT, arXiv 2304.06767): samples, keeps the good ones, and fine-tunes on them.

    Also called rejection sampling fine-tuning, expert iteration, ReST-EM.
    """

    samples_per_prompt: Annotated[int, Field(ge=1, le=4096)] = 8
    """Completions per prompt. The more, the harder the prompts of which one is good."""
    min_reward: Annotated[float, Field(ge=-1e9, le=1e9)] = 1.0
    """Smallest reward of a sample that is kept. 1: a right answer of the builtin rewards, at weight 1."""
    keep_best: PositiveInt | None = None
    """Most samples of a prompt that are kept, those of the highest rewards. Unset: all; with 1 easy prompts, of which
    most samples are good, weigh no more than hard ones."""
    updates_per_batch: Annotated[int, Field(ge=1, le=64)] = 1
    """Optimizer updates per rollout batch: how long the kept samples are learned before new ones are drawn."""


class SdpoPolicy(SpecModel):
    """The policy loss beside sdpo's divergence: grpo's, over all samples, with their rewards' advantages."""

    loss: Literal["grpo", "dr-grpo", "dapo", "rloo", "gspo"] = "grpo"
    """As in `grpo`, whose mean over sequences is the divergence's too; TRL's SDPO takes dapo's. The sampler is
    corrected for as grpo does by default."""
    advantage: Advantage | None = None
    """How advantages are computed from rewards. Unset: as in the loss's paper."""
    clip_low: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """ε: the ratio is clipped below 1 − ε. Unset: the loss's paper (0.2; gspo 3e-4)."""
    clip_high: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    """ε_high: clipped above 1 + ε_high. Unset: the paper's (0.2; dapo 0.28; gspo 4e-4)."""


class Sdpo(SpecModel):
    """Self-distillation policy optimisation (SDPO, arXiv 2601.20802): a sample learns from the student's own hindsight.

    The teacher is the student that reads a good sample of the same prompt; a sample learns, token by token, what that
    teacher would have predicted in its place.
    """

    group_size: Annotated[int, Field(ge=2, le=4096)] = 8
    """Samples per prompt (G). The more, the harder the prompts of which one sample is good."""
    min_reward: Annotated[float, Field(ge=-1e9, le=1e9)] = 1.0
    """Smallest reward of a sample that shows others how. 1: a right answer of the builtin rewards, at weight 1."""
    teacher: Literal["initial", "average", "current"] = "initial"
    """The teacher's weights: `initial`, the student before its first step, which cannot drift; `average`, the moving
    average of `training.ema`, which improves with the student (the paper's and TRL's; a decay of 0.95); `current`, the
    present weights: no second copy, and the least stable."""
    solution_context: Annotated[str, Field(min_length=1, max_length=8192)] = (
        "{prompt}\n\nThis is a correct solution:\n\n{solution}\n\nSolve the original question correctly."
    )
    """The teacher's replacement for the prompt's last message: `{prompt}` is that message, `{solution}` the first good
    sample of the prompt, and `{column}` a column of the row, for instance feedback on a usual mistake."""
    feedback_context: Annotated[str, Field(min_length=1, max_length=8192)] | None = None
    """The same where no other sample is good, without `{solution}`. Unset: such a sample teaches nothing."""
    own_solution: bool = False
    """Whether a good sample may be its own solution. false: it learns from another good one, or nothing."""
    drop_thinking: bool = False
    """Leave `<think>…</think>` out of solutions."""
    signal: Literal["distribution", "sampled-token"] = "distribution"
    """What is compared at each token: the whole `distribution` by the divergence `beta`; or the `sampled-token` alone,
    whose log-ratio is the token's advantage: the same gradient on average, with more variance."""
    beta: Fraction = 1.0
    """Generalised Jensen-Shannon divergence: 0 is forward KL, 1 reverse KL; TRL's `distillation_alpha`."""
    top_k: NonNegativeInt = 0
    """Compare the student's k likeliest tokens, and all others as one outcome; 0: the whole vocabulary."""
    highest_ratio: Annotated[float, Field(ge=1.0, le=1e6)] | None = 2.0
    """Largest weight of a token by its probability now over that before the batch's first update. Unset: no weight."""
    distillation_weight: Fraction = 1.0
    """w: the loss is w times the divergence's and 1 − w times the policy loss. 1: no policy loss. Below 1 every sample
    with an advantage learns, also where no sample of its prompt is good; 0: the policy loss alone, without a teacher.
    """
    policy: SdpoPolicy | None = None
    """The policy loss, where `distillationWeight` is below 1. Unset: grpo's."""
    updates_per_batch: Annotated[int, Field(ge=1, le=64)] = 1
    """Optimizer updates per rollout batch."""


class Teacher(SpecModel):
    """The model to imitate: at a `uri`, beside the student on its chips, or behind a `service`."""

    uri: ModelUri | None = None
    """Where the teacher's weights are."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` teacher."""
    service: ServiceName | None = None
    """The service of the job that serves the teacher, which must have the student's tokenizer. It is asked for the
    `topK` likeliest tokens."""


class SelfTeacher(SpecModel):
    """The student itself as its teacher (arXiv 2601.18734, 2601.19897).

    The teacher reads more context; on its own samples the student learns to predict what it would with that context.
    """

    weights: Literal["initial", "average", "current"] = "initial"
    """The teacher's weights: `initial`, the student before its first step, which cannot drift; `average`, the moving
    average of `training.ema`; `current`, the student's present weights: no second copy, and the least stable."""
    privileged_context: Annotated[str, Field(min_length=1, max_length=8192)] | None = None
    """The teacher's replacement for the prompt's last message: text in which `{prompt}` is that message, `{answer}` the
    gold answer, and `{column}` a column of the row. Unset: the teacher reads the same prompt as the student."""


class Distill(SpecModel):
    """Distillation: offline from the data, online, or on the student's own samples (arXiv 2306.13649)."""

    mode: Literal["on-policy", "online", "offline"] = "on-policy"
    """`on-policy` trains on the student's own samples, which avoids a mismatch between training and use; `online` on
    the data's completions; `offline` on the data's completions with the teacher's log-probs from the data."""
    teacher: Teacher | None = None
    """The teacher. This or `selfTeacher` is required, unless `mode` is `offline`: there the columns `teacher_ids` and
    `teacher_logprobs` hold the teacher's tokens and log-probs."""
    self_teacher: SelfTeacher | None = None
    """Self-distillation on the student's own samples: the teacher is the student with more context or earlier
    weights."""
    beta: Fraction = 1.0
    """Generalised Jensen-Shannon divergence: 0 is forward KL, 1 reverse KL."""
    student_share: Fraction = 1.0
    """λ: for on-policy, the probability that a step trains on the student's samples instead of the data."""
    top_k: NonNegativeInt = 0
    """Compare the teacher's k likeliest tokens, and all others as one outcome; 0: the whole vocabulary."""

    @property
    def teacher_service(self) -> str | None:
        """Return the name of the service that is the teacher, if one is."""
        return None if self.teacher is None else self.teacher.service

    @property
    def has_teacher_logprobs(self) -> bool:
        """Return True if batches hold the teacher's log-probs, from the data or from a service."""
        return self.mode == "offline" or self.teacher_service is not None


class Algorithm(SpecModel):
    """Exactly one of these is set."""

    sft: Sft | None = None
    """Supervised fine-tuning."""
    dpo: Dpo | None = None
    """Direct preference optimisation and relatives."""
    kto: Kto | None = None
    """Kahneman-Tversky optimisation: answers labelled one by one."""
    reward: RewardModelTraining | None = None
    """Training of a reward model, from preferences."""
    grpo: Grpo | None = None
    """Group-relative policy optimisation and relatives."""
    distill: Distill | None = None
    """Distillation from a teacher."""
    ppo: Ppo | None = None
    """Proximal policy optimisation with a critic."""
    raft: Raft | None = None
    """Filtered self-training: supervised fine-tuning on the model's own good samples."""
    sdpo: Sdpo | None = None
    """Self-distillation policy optimisation: learning from what one would say after seeing a good sample."""

    @property
    def kind(self) -> str:
        """Return the name of the algorithm that is set, one of `ALGORITHMS`."""
        return next(name for name in ALGORITHMS if getattr(self, name) is not None)

    @property
    def learns_from_rewards(self) -> bool:
        """Return True for reinforcement learning: sampled completions, trained on their rewards."""
        return self.grpo is not None or self.ppo is not None or self.raft is not None or self.sdpo is not None

    @property
    def is_on_policy(self) -> bool:
        """Return True if the job trains on completions that the model itself samples."""
        return self.learns_from_rewards or (self.distill is not None and self.distill.mode == "on-policy")

    @property
    def samples_per_prompt(self) -> int:
        """Return the completions per prompt of a batch; 1 without sampling."""
        grouped = self.grpo or self.sdpo
        if grouped is not None:
            return grouped.group_size
        rl = self.ppo or self.raft
        return 1 if rl is None else rl.samples_per_prompt

    @property
    def updates_per_batch(self) -> int:
        """Return the optimizer steps that use the same completions; 1 without sampling."""
        rl = self.grpo or self.ppo or self.raft or self.sdpo
        return 1 if rl is None else rl.updates_per_batch

    @property
    def reference_coefficient(self) -> float:
        """Return the coefficient of the KL to a reference model in memory; 0 if there is none."""
        if self.grpo is not None:
            return self.grpo.beta
        return 0.0 if self.ppo is None else self.ppo.kl_coefficient

    @property
    def has_moving_reference(self) -> bool:
        """Return True if the reference model follows the policy."""
        return self.grpo is not None and self.grpo.reference_sync is not None

    @property
    def label(self) -> str:
        """Return the name that `kubectl get ptj` shows: the algorithm, or the GRPO variant (`gspo`)."""
        return self.grpo.loss if self.grpo is not None else self.kind


ALGORITHMS = ("sft", "dpo", "kto", "reward", "grpo", "distill", "ppo", "raft", "sdpo")
