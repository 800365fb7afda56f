"""What is computed: exactly one algorithm, its variant and its numbers.

Defaults are those of the papers that `docs/reference/algorithms.md` names.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import Fraction, ModelUri, NonNegativeInt, PositiveInt, SpecModel

GrpoLoss = Literal["grpo", "dr-grpo", "dapo", "gspo", "gspo-token", "cispo", "rloo"]
Advantage = Literal["group", "centered", "leave-one-out", "batch"]
Coefficient = Annotated[float, Field(ge=0.0, le=1000.0)]


class Sft(SpecModel):
    """Supervised fine-tuning: cross-entropy over assistant tokens, normalised by the global token count."""

    loss_on_prompt: bool = False
    """Train on prompt tokens too. Off: only what the assistant says, its end-of-turn token included."""
    loss: Literal["nll", "dft"] = "nll"
    """`dft` (arXiv 2508.05629) weights a token's negative log-likelihood by the probability that the model gives it,
    so that tokens it thinks impossible do not pull it away; TRL's `loss_type`."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of the target that is spread over the vocabulary; TRL's `label_smoothing_factor`."""
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
    """γ, which simpo asks the better answer to lead by; the paper takes about half of β. Unset: 1."""


class DynamicSampling(SpecModel):
    """DAPO's dynamic sampling: groups whose rewards are all equal are replaced by new prompts."""

    max_tries: PositiveInt = 3
    """How many times a step may draw replacement prompts before it trains on what it has."""


class Overlong(SpecModel):
    """DAPO's soft overlong penalty, counted in tokens, with a floor of -1."""

    buffer_tokens: PositiveInt = 64
    """The penalty grows linearly from 0 to -1 over the last `bufferTokens` of `rollout.maxNewTokens`."""


class Grpo(SpecModel):
    """Group-relative policy optimisation (arXiv 2402.03300) and its variants."""

    loss: GrpoLoss = "grpo"
    """Which policy loss; see docs/reference/algorithms.md for each formula."""
    group_size: Annotated[int, Field(ge=2, le=4096)] = 8
    """Samples per prompt (G). 8 is the smallest that gives a stable group baseline in published recipes."""
    advantage: Advantage | None = None
    """How rewards become advantages. Unset: what the loss's paper uses."""
    combine_rewards: Literal["sum", "z-scores"] = "sum"
    """How several rewards become one. `sum`: their weighted sum. `z-scores`: each is z-scored in its group before that,
    so that it counts by its weight and not by its scale, or by how much it varies (arXiv 2601.05242). `reward` in the
    log is the plain sum either way."""
    clip_low: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """ε: the ratio is clipped below 1 − ε; cispo has no such bound. Unset: the loss's paper (0.2; gspo 3e-4)."""
    clip_high: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    """ε_high: clipped above 1 + ε_high (cispo: at ε_high). Unset: the paper's (0.2; dapo 0.28; gspo 4e-4; cispo 5)."""
    dual_clip: Annotated[float, Field(gt=1.0, le=100.0)] | None = None
    """Bound c of the two-sided clip for negative advantages; 3 is usual; not with cispo. Unset: off."""
    beta: Coefficient = 0.0
    """Coefficient of the KL to the reference model. 0: no reference model is held in memory."""
    kl: Literal["k2", "k3"] = "k2"
    """Estimator whose gradient is the reverse KL's: k2, or k3 with importance-corrected gradient. k1 is refused."""
    updates_per_batch: Annotated[int, Field(ge=1, le=64)] = 1
    """Optimizer updates per rollout batch (μ). 1: every update is on-policy."""
    dynamic_sampling: DynamicSampling | None = None
    """Replace groups without spread. Unset: off, except that such groups are counted and shown."""
    overlong: Overlong | None = None
    """Soft penalty for completions near the length limit. Unset: off."""


class Critic(SpecModel):
    """What PPO compares a completion's reward with, token by token."""

    kind: Literal["head", "model"] = "head"
    """`head`: one linear output more on the policy's last hidden state: no second model in memory. `model`: a model of
    its own with such a head, which costs the policy's memory again and keeps the two tasks apart; with `training.lora`
    adapters of its own, of the same rank and targets, on the weights that the policy's are on."""
    uri: ModelUri | None = None
    """Where the critic begins: the `export/critic` of an earlier run; for a critic `model` also any model in Hugging
    Face's layout with the policy's tokens. Unset: a value head that says 0, on the policy's own first weights."""
    revision: Annotated[str, Field(max_length=1024)] | None = None
    """Branch, tag or commit of an `hf://` critic."""
    learning_rate: Annotated[float, Field(gt=0.0, le=10.0)] | None = None
    """Peak learning rate of the critic's weights, with the schedule of `training`. Unset: ten times that of a policy
    whose weights are all trained (1e-5 where that is 1e-6), because the critic starts from nothing."""


class Ppo(SpecModel):
    """Proximal policy optimisation (arXiv 1707.06347) with a critic and generalised advantages (1506.02438)."""

    samples_per_prompt: Annotated[int, Field(ge=1, le=4096)] = 1
    """Completions of each prompt. 1: the critic is the baseline, so more prompts say more than more samples."""
    gamma: Fraction = 1.0
    """γ: discount per token. 1: a right answer is worth the same whatever its length."""
    gae_lambda: Fraction = 0.95
    """λ: 1 trusts the reward alone (no bias, most noise), 0 the critic alone. 0.95 as in the papers: a reward at the
    end of a few hundred tokens still reaches the first of them through the critic, with far less noise."""
    clip: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    """ε: the ratio of new to old probability is clipped to 1 ± ε."""
    value_clip: Annotated[float, Field(ge=0.0, le=1000.0)] = 0.2
    """The critic's values move at most this far from those before the batch's first update; 0: no such bound. Raise it
    where rewards are much larger than 1."""
    value_coefficient: Coefficient = 0.1
    """Weight of the value loss beside the policy loss. With critic `head` both train the same layers, and 0.1 keeps the
    policy's part the larger; with `model` it only scales the critic's gradient before it is clipped."""
    kl_coefficient: Coefficient = 0.0
    """β of the penalty −β·(log π − log π_ref) that each token's reward has in it (the k1 estimator: right inside a
    reward, where no gradient flows through it). 0: no reference model is held in memory."""
    updates_per_batch: Annotated[int, Field(ge=1, le=64)] = 4
    """Optimizer updates per rollout batch. Clipping has an effect from the second on; 4 is the usual number."""
    whiten_advantages: bool = True
    """Advantages of the batch's tokens are shifted and scaled to mean 0 and deviation 1."""
    bootstrap_truncated: bool = False
    """What follows where `maxNewTokens` cut a completion. false: nothing, it ended there, as length is part of most
    tasks. true: the critic's value of the state where it was cut, because it would have gone on (arXiv 1712.00378)."""
    critic: Critic = Critic()
    """The critic; its weights are checkpointed, and exported beside the policy's, in `export/critic`."""


class Teacher(SpecModel):
    """The model that is imitated."""

    uri: ModelUri
    """Where the teacher's weights are."""
    revision: Annotated[str, Field(max_length=1024)] | None = None
    """Branch, tag or commit of an `hf://` teacher."""


class SelfTeacher(SpecModel):
    """The student itself as its teacher (arXiv 2601.18734, 2601.19897): it is told more, and the student learns to
    predict on its own samples what it would have predicted had it known."""

    weights: Literal["initial", "average", "current"] = "initial"
    """Whose predictions: `initial`, the student before its first step, which cannot drift; `average`, the moving
    average that `training.ema` keeps; `current`, the student as it is now: no second copy, and the least stable."""
    privileged_context: Annotated[str, Field(min_length=1, max_length=8192)] | None = None
    """What the teacher reads in place of the prompt's last message: text in which `{prompt}` is that message,
    `{answer}` the gold answer, and `{column}` a column of the row. Unset: the teacher reads what the student reads."""


class Distill(SpecModel):
    """Distillation: offline from the data, online, or on the student's own samples (arXiv 2306.13649)."""

    mode: Literal["on-policy", "online", "offline"] = "on-policy"
    """`on-policy` trains on the student's own samples, which avoids the mismatch between training and use; `online` on
    the completions of the data; `offline` on them with the teacher's log-probs in the data too."""
    teacher: Teacher | None = None
    """A teacher is needed, this or `selfTeacher`, unless `mode` is `offline`: there the columns `teacher_ids` and
    `teacher_logprobs` say what it said."""
    self_teacher: SelfTeacher | None = None
    """Self-distillation on the student's own samples: the teacher is the student, told more or longer ago."""
    beta: Fraction = 1.0
    """Generalised Jensen-Shannon divergence: 0 is forward KL, 1 reverse KL."""
    student_share: Fraction = 1.0
    """λ: with on-policy, the probability that a step trains on the student's samples and not on the data."""
    top_k: NonNegativeInt = 0
    """Compare the teacher's likeliest tokens, and all others as one outcome; 0 is the whole vocabulary."""


class Algorithm(SpecModel):
    """Exactly one of these is set."""

    sft: Sft | None = None
    """Supervised fine-tuning."""
    dpo: Dpo | None = None
    """Direct preference optimisation and relatives."""
    grpo: Grpo | None = None
    """Group-relative policy optimisation and relatives."""
    distill: Distill | None = None
    """Distillation from a teacher."""
    ppo: Ppo | None = None
    """Proximal policy optimisation with a critic."""

    @property
    def kind(self) -> str:
        """The name of the algorithm that is set: `sft`, `dpo`, `grpo`, `distill` or `ppo`."""
        return next(name for name in ALGORITHMS if getattr(self, name) is not None)

    @property
    def learns_from_rewards(self) -> bool:
        """Reinforcement learning: it samples completions and trains on their rewards."""
        return self.grpo is not None or self.ppo is not None

    @property
    def is_on_policy(self) -> bool:
        """It trains on completions that the model itself samples."""
        return self.learns_from_rewards or (self.distill is not None and self.distill.mode == "on-policy")

    @property
    def samples_per_prompt(self) -> int:
        """Completions of each prompt of a batch; 1 where none are sampled."""
        if self.grpo is not None:
            return self.grpo.group_size
        return 1 if self.ppo is None else self.ppo.samples_per_prompt

    @property
    def updates_per_batch(self) -> int:
        """Optimizer steps that use the same completions; 1 where none are sampled."""
        rewarded = self.grpo or self.ppo
        return 1 if rewarded is None else rewarded.updates_per_batch

    @property
    def reference_coefficient(self) -> float:
        """Of the KL to a reference model that is held in memory; 0 where there is none."""
        if self.grpo is not None:
            return self.grpo.beta
        return 0.0 if self.ppo is None else self.ppo.kl_coefficient

    @property
    def label(self) -> str:
        """What `kubectl get ptj` shows: the algorithm, or the GRPO variant (`gspo`)."""
        return self.grpo.loss if self.grpo is not None else self.kind


ALGORITHMS = ("sft", "dpo", "grpo", "distill", "ppo")
