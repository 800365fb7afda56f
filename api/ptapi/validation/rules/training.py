"""Rules for training: the run, its rows and batches, what each optimizer reads, and what goes with adapters."""

from ptapi.validation.predicate import Predicate, differs, each_once, empty, equals, has, is_multiple, is_true, unset
from ptapi.validation.rule import SPEC, Rule, Scope

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
        | Predicate(
            "self.profile.start + self.profile.steps - 1 <= self.steps",
            lambda training: training.profile.start + training.profile.steps - 1 <= training.steps,
        ),
    ),
    _TRAINING.rule(
        "microBatchSize", "a divisor of batchSize", unset("microBatchSize") | is_multiple("batchSize", "microBatchSize")
    ),
    *(
        SPEC.multiple_of(
            "training.batchSize",
            f"algorithm.{algorithm}.groupSize",
            "because a step trains on whole groups",
            "batchSize counts sequences: prompts x groupSize",
            unless=unset(f"algorithm.{algorithm}"),
        )
        for algorithm in ("grpo", "sdpo")
    ),
    *(
        SPEC.multiple_of(
            "training.batchSize",
            f"algorithm.{algorithm}.samplesPerPrompt",
            "because it counts sequences",
            unless=unset(f"algorithm.{algorithm}"),
        )
        for algorithm in ("ppo", "raft")
    ),
    SPEC.multiple_of(
        "training.microBatchSize",
        "algorithm.grpo.groupSize",
        "because a group is never split",
        unless=unset("algorithm.grpo") | unset("training.microBatchSize"),
    ),
    SPEC.rule(
        "training.batchSize",
        "an even number, because dpo and reward train on pairs of sequences",
        (unset("algorithm.dpo") & unset("algorithm.reward")) | is_multiple("training.batchSize", 2),
    ),
    SPEC.rule(
        "training.microBatchSize",
        "an even number, because a pair is never split",
        (unset("algorithm.dpo") & unset("algorithm.reward"))
        | unset("training.microBatchSize")
        | is_multiple("training.microBatchSize", 2),
    ),
    SPEC.rule(
        "training.sequenceLength",
        "a multiple of training.parallelism.sequence, which splits the tokens of a row evenly",
        Predicate(
            "type(self.training.parallelism.sequence) != int || int(self.training.parallelism.sequence) < 1 || "
            "self.training.sequenceLength % int(self.training.parallelism.sequence) == 0",
            lambda spec: (
                spec.training.parallelism.sequence == "auto"
                or spec.training.sequence_length % spec.training.parallelism.sequence == 0
            ),
        ),
    ),
    *(
        Scope("spec.training.optimizer").unset_unless(field, differs("name", name), f"because {name} has none")
        for field, name in (("beta1", "adafactor"), ("beta2", "adafactor"), ("eps", "adafactor"), ("eps", "lion"))
    ),
    SPEC.rule(
        "training.lora.from",
        "unset with checkpoint.fork: a run begins with the adapters of one or of the other",
        unset("checkpoint.fork") | unset("training.lora") | unset("training.lora.from"),
    ),
    _TRAINING.rule(
        "optimizer.name",
        "adamw, adafactor or lion with lora: muon is made for the model's own matrices",
        unset("lora") | differs("optimizer.name", "muon"),
    ),
    _TRAINING.rule("freeze", "each pattern once", each_once("freeze")),
    _TRAINING.rule("freeze", "unset with lora, which trains adapters alone", unset("lora") | empty("freeze")),
    _TRAINING.rule(
        "vision",
        "frozen or lora with training.lora, which trains adapters alone",
        unset("lora") | equals("vision", "frozen") | equals("vision", "lora"),
    ),
    _TRAINING.rule(
        "vision",
        "frozen, projector or all without training.lora, which has the rank and targets of a tower's adapters",
        has("lora") | differs("vision", "lora"),
        "lora: {}",
    ),
    _TRAINING.rule(
        "lora.dropout",
        "0 with vision: lora: the adapters of a tower drop nothing",
        unset("lora") | differs("vision", "lora") | equals("lora.dropout", 0.0),
    ),
    SPEC.rule(
        "training.vision",
        "frozen without model.images",
        equals("training.vision", "frozen") | is_true("model.images"),
    ),
    SPEC.unset_unless(
        "training.quantization",
        has("training.lora"),
        "or together with training.lora: only frozen weights can be quantized",
    ),
)
