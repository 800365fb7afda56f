"""Rules for data: what reads the held-out rows, and whose revisions and columns there are."""

from ptapi.spec import DataSource
from ptapi.validation.condition import Condition, each_once, empty, equals, has, starts_with
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.algorithm import USES_REWARDS


def _columns_differ(source: DataSource) -> bool:
    names = [name for name in source.columns.model_dump().values() if name is not None]
    return len(set(names)) == len(names)


RULES: tuple[Rule, ...] = (
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
            & Condition(
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
    SPEC.rule(
        "data.eval",
        "held-out data, because evaluation.everySteps asks for it",
        equals("evaluation.everySteps", 0) | has("data.eval"),
        "data.eval: {uri: …}, or evaluation.everySteps: 0",
    ),
    *(
        rule
        for scope in (Scope("spec.data.train"), Scope("spec.data.eval"))
        for rule in (
            scope.rule("columns", "different columns", Condition("", _columns_differ)),
            scope.unset_unless("revision", starts_with("uri", "hf://"), "because only hf:// data have revisions"),
        )
    ),
)
