"""Rules for evaluation, checkpoints and export: what is judged, kept and written."""

from ptapi.spec import PostTrainJob
from ptapi.validation.predicate import Predicate, differs, each_once, empty, equals, has, is_true, matches, unset
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.algorithm import USES_NO_REWARDS, USES_REWARDS
from ptapi.validation.rules.rollouts.rollout import HOLDS_BOTH

_BETTER_WHEN_LARGER = r"^eval/(reward|pass@|accuracy|exactMatch|exact_match|macroF1|macro_f1|token_accuracy)"


def _forks_from_itself(job: PostTrainJob) -> bool:
    own = f"{job.spec.output.uri.rstrip('/')}/{job.metadata.name}"
    fork = job.spec.checkpoint.fork
    return fork is not None and (fork.uri.rstrip("/") == own or fork.uri.startswith(f"{own}/"))


RULES: tuple[Rule, ...] = (
    SPEC.less_than(
        "evaluation.maxNewTokens",
        "training.sequenceLength",
        HOLDS_BOTH,
        unless=USES_NO_REWARDS | unset("evaluation.maxNewTokens"),
    ),
    SPEC.rule(
        "evaluation.answers",
        "unset, or together with data.eval and sft, grpo or ppo: held-out prompts are answered and compared",
        empty("evaluation.answers") | (has("data.eval") & (has("algorithm.sft") | USES_REWARDS)),
        "data.eval: {uri: …}",
    ),
    Scope("spec.evaluation").rule(
        "labels",
        "unset, or together with answers: accuracy or macroF1, which compare labels",
        empty("labels")
        | (
            has("answers")
            & Predicate(
                "self.answers.exists(metric, metric != 'exactMatch')",
                lambda evaluation: any(metric != "exactMatch" for metric in evaluation.answers),
            )
        ),
        "answers: [accuracy, macroF1]",
    ),
    *(Scope("spec.evaluation").rule(field, "each one once", each_once(field)) for field in ("answers", "labels")),
    SPEC.rule(
        "evaluation.samples",
        "1, or together with data.eval, whose prompts are sampled",
        equals("evaluation.samples", 1) | has("data.eval"),
        "data.eval: {uri: …}",
    ),
    Scope("spec.checkpoint.best").rule(
        "mode",
        "max for this metric, which is better when it is larger",
        equals("mode", "max") | ~matches("metric", _BETTER_WHEN_LARGER),
        "mode: max",
    ),
    Scope("").rule(
        "spec.checkpoint.fork.uri",
        "another run: this is the job's own run directory, which checkpoint.resume continues",
        Predicate("", lambda job: not _forks_from_itself(job)),
    ),
    SPEC.rule(
        "export.format",
        "safetensors or none; peft exports an adapter and needs training.lora",
        differs("export.format", "peft") | has("training.lora"),
    ),
    SPEC.unset_unless(
        "checkpoint.best",
        has("data.eval"),
        "or together with data.eval: an evaluation says what is best",
        "data.eval: {uri: …}",
    ),
    SPEC.rule(
        "export.checkpoint",
        "last; best needs checkpoint.best",
        differs("export.checkpoint", "best") | has("checkpoint.best"),
        "checkpoint.best: {}",
    ),
    Scope("spec.export").rule(
        "mergeLora",
        "true, because weights in safetensors have the adapters in them; false only with format: peft",
        unset("mergeLora") | is_true("mergeLora") | equals("format", "peft"),
        "export: {format: peft} writes the adapters alone",
    ),
)
