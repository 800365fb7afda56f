"""Rules for data: how data of the hub are named, and what reads the held-out rows."""

from ptapi.validation.condition import Condition, empty, equals, has, matches, starts_with
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.algorithm import USES_REWARDS

HUB_DATA = "^hf://datasets/[^/]+/[^/]+"

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
            scope.rule(
                "uri",
                "file:///…, gs://… or hf://datasets/organisation/name, and a path in it",
                ~starts_with("uri", "hf://") | matches("uri", HUB_DATA),
            ),
            scope.unset_unless("revision", starts_with("uri", "hf://"), "because only hf:// data have revisions"),
        )
    ),
)
