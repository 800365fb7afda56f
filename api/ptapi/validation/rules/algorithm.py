"""Rules for the algorithm: which one, what it asks of rewards and environment, and what belongs to one loss alone."""

from ptapi.spec.algorithm import ALGORITHMS
from ptapi.validation.predicate import (
    Predicate,
    compare,
    differs,
    empty,
    equals,
    filled,
    has,
    one_of,
    starts_with,
    unset,
)
from ptapi.validation.rule import SPEC, Rule, Scope

USES_REWARDS = has("algorithm.grpo") | has("algorithm.ppo") | has("algorithm.raft") | has("algorithm.sdpo")
# Not `~USES_REWARDS`, so that no rule stored in a cluster changes its text.
USES_NO_REWARDS = Predicate(
    "!has(self.algorithm.grpo) && !has(self.algorithm.ppo) && !has(self.algorithm.raft) && !has(self.algorithm.sdpo)",
    lambda spec: not spec.algorithm.learns_from_rewards,
)
HAS_REWARDING_ENVIRONMENT = has("environment") & (
    has("environment.python") | has("environment.gymnasium") | has("environment.openenv") | has("environment.verifiers")
)
_DPO = Scope("spec.algorithm.dpo")
_CRITIC = Scope("spec.algorithm.ppo.critic")

RULES: tuple[Rule, ...] = (
    SPEC.exactly_one(*ALGORITHMS, parent="algorithm", hint="algorithm: {sft: {}}"),
    SPEC.rule(
        "rewards",
        "at least one reward, because grpo, ppo, raft and sdpo learn from rewards alone",
        USES_NO_REWARDS | filled("rewards") | HAS_REWARDING_ENVIRONMENT,
        "rewards: [{builtin: gsm8k}]",
    ),
    SPEC.rule(
        "rewards",
        "none without data.eval, because only grpo, ppo, raft and sdpo learn from rewards: others judge held-out "
        "answers",
        USES_REWARDS | empty("rewards") | has("data.eval"),
    ),
    SPEC.rule(
        "rewards",
        "none with reward, whose model scores text and writes none",
        unset("algorithm.reward") | empty("rewards"),
    ),
    SPEC.unset_unless(
        "environment",
        has("algorithm.grpo") | has("algorithm.ppo") | has("algorithm.raft") | has("algorithm.sft"),
        "because only grpo, ppo, raft and sft's evaluation speak with an environment",
    ),
    *(
        Scope("spec.algorithm.grpo").unset_unless(
            field, differs("loss", "cispo"), "because cispo only cuts weights above clipHigh"
        )
        for field in ("clipLow", "dualClip")
    ),
    *(
        Scope("spec.algorithm.grpo").unset_unless(
            field, differs("loss", "sapo"), "because sapo has softClip in place of bounds"
        )
        for field in ("clipLow", "clipHigh", "dualClip")
    ),
    *(
        Scope("spec.algorithm.grpo").unset_unless(
            field, differs("loss", "vespo"), "because vespo has gammaWeight in place of bounds"
        )
        for field in ("clipLow", "clipHigh", "dualClip")
    ),
    *(
        Scope("spec.algorithm.grpo").unset_unless("dualClip", differs("loss", loss), f"because {loss} bounds no ratio")
        for loss in ("dppo", "dppo-kl")
    ),
    Scope("spec.algorithm.grpo").rule(
        "samplerCorrection.mode",
        "token-truncate with dppo, whose ratio is to the sampler already",
        equals("samplerCorrection.mode", "token-truncate") | ~one_of("loss", "dppo", "dppo-kl"),
    ),
    Scope("spec.algorithm.grpo").rule(
        "samplerCorrection.mode",
        "token-truncate or token-mask with vespo, which multiplies the tokens' weights itself",
        one_of("samplerCorrection.mode", "token-truncate", "token-mask") | differs("loss", "vespo"),
    ),
    Scope("spec.algorithm.grpo").unset_unless("gammaWeight", equals("loss", "vespo"), "because only vespo has one"),
    Scope("spec.algorithm.grpo").unset_unless("softClip", equals("loss", "sapo"), "because only sapo clips softly"),
    Scope("spec.algorithm.grpo").rule(
        "kl", "unset with beta: 0, where the loss has no KL", equals("kl", "k2") | differs("beta", 0.0)
    ),
    Scope("spec.algorithm.grpo").unset_unless(
        "referenceSync", differs("beta", 0.0), "because with beta: 0 there is no reference"
    ),
    SPEC.rule(
        "algorithm.grpo.referenceSync",
        "unset, because with training.lora the reference is the model without adapters, which cannot follow",
        unset("algorithm.grpo") | unset("algorithm.grpo.referenceSync") | unset("training.lora"),
    ),
    Scope("spec.algorithm.grpo.entropyBonus").rule(
        "coefficient", "above 0, or adaptive set, which lets it grow", differs("coefficient", 0.0) | has("adaptive")
    ),
    Scope("spec.algorithm.grpo.entropyBonus.adaptive").rule(
        "lowest", "at most highest", compare("lowest", "<=", "highest")
    ),
    _DPO.rule(
        "labelSmoothing",
        "0, because only sigmoid, robust and simpo smooth labels",
        equals("labelSmoothing", 0.0) | one_of("loss", "sigmoid", "robust", "simpo"),
    ),
    _DPO.unset_unless("margin", equals("loss", "simpo"), "because only simpo has a margin"),
    *(
        SPEC.rule(
            f"data.{part}.columns.label",
            "unset, because only kto reads labels",
            has("algorithm.kto")
            | unset(f"data.{part}")
            | unset(f"data.{part}.columns")
            | unset(f"data.{part}.columns.label"),
        )
        for part in ("train", "eval")
    ),
    Scope("spec.algorithm.raft").rule(
        "keepBest", "at most samplesPerPrompt", unset("keepBest") | compare("keepBest", "<=", "samplesPerPrompt")
    ),
    _CRITIC.unset_unless(
        "revision", has("uri") & starts_with("uri", "hf://"), "or together with an hf:// uri, which has revisions"
    ),
    _CRITIC.rule(
        "uri",
        "file:///… or gs://… where kind is head: a run's export/critic; kind: model begins from any model",
        equals("kind", "model") | unset("uri") | starts_with("uri", "file://") | starts_with("uri", "gs://"),
    ),
    Scope("spec.algorithm.sft").rule(
        "labelSmoothing",
        "0 with loss: dft, which weighs a token by its own probability",
        differs("loss", "dft") | equals("labelSmoothing", 0.0),
    ),
    SPEC.rule(
        "algorithm.grpo.overlong.bufferTokens",
        "at most rollout.maxNewTokens, at whose end the penalty begins",
        unset("algorithm.grpo")
        | unset("algorithm.grpo.overlong")
        | compare("algorithm.grpo.overlong.bufferTokens", "<=", "rollout.maxNewTokens"),
    ),
)
