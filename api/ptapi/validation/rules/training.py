"""Rules for training: the length of the run and of a row, how batches divide, and what each optimizer reads."""

from ptapi.validation.condition import Condition, compare, differs, equals, is_multiple, unset
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.algorithm import USES_NO_REWARDS

_HOLDS_BOTH = "which holds the prompt and the completion"
_TRAINING = Scope("spec.training")

RULES: tuple[Rule, ...] = (
    _TRAINING.rule("epochs", "unset, because steps is set; one of steps, epochs", unset("steps") | unset("epochs")),
    Scope("spec.training.schedule").rule(
        "finalFraction",
        "unset with kind: constant, which does not decay",
        differs("kind", "constant") | equals("finalFraction", 0.1),
    ),
    _TRAINING.rule(
        "profile",
        "start + steps - 1 of at most steps, the length of the run",
        unset("profile")
        | unset("steps")
        | Condition(
            "self.profile.start + self.profile.steps - 1 <= self.steps",
            lambda training: training.profile.start + training.profile.steps - 1 <= training.steps,
        ),
    ),
    _TRAINING.rule(
        "microBatchSize", "a divisor of batchSize", unset("microBatchSize") | is_multiple("batchSize", "microBatchSize")
    ),
    SPEC.multiple_of(
        "training.batchSize",
        "algorithm.grpo.groupSize",
        "because a step trains on whole groups",
        "batchSize counts sequences: prompts x groupSize",
        unless=unset("algorithm.grpo"),
    ),
    SPEC.multiple_of(
        "training.batchSize",
        "algorithm.ppo.samplesPerPrompt",
        "because it counts sequences",
        unless=unset("algorithm.ppo"),
    ),
    SPEC.multiple_of(
        "training.microBatchSize",
        "algorithm.grpo.groupSize",
        "because a group is never split",
        unless=unset("algorithm.grpo") | unset("training.microBatchSize"),
    ),
    SPEC.rule(
        "training.batchSize",
        "an even number, because dpo trains on pairs of sequences",
        unset("algorithm.dpo") | is_multiple("training.batchSize", 2),
    ),
    SPEC.rule(
        "training.microBatchSize",
        "an even number, because a pair is never split",
        unset("algorithm.dpo") | unset("training.microBatchSize") | is_multiple("training.microBatchSize", 2),
    ),
    SPEC.less_than("rollout.maxNewTokens", "training.sequenceLength", _HOLDS_BOTH, unless=USES_NO_REWARDS),
    SPEC.rule(
        "algorithm.grpo.overlong.bufferTokens",
        "at most rollout.maxNewTokens, at whose end the penalty begins",
        unset("algorithm.grpo")
        | unset("algorithm.grpo.overlong")
        | compare("algorithm.grpo.overlong.bufferTokens", "<=", "rollout.maxNewTokens"),
    ),
    SPEC.less_than(
        "evaluation.maxNewTokens",
        "training.sequenceLength",
        _HOLDS_BOTH,
        unless=USES_NO_REWARDS | unset("evaluation.maxNewTokens"),
    ),
    *(
        Scope("spec.training.optimizer").unset_unless(field, differs("name", name), f"because {name} has none")
        for field, name in (("beta1", "adafactor"), ("beta2", "adafactor"), ("eps", "adafactor"), ("eps", "lion"))
    ),
)
