"""Rules for data: how data of the hub are named, and when rows are held out."""

from ptapi.validation.condition import equals, has, matches, starts_with
from ptapi.validation.rule import SPEC, Rule, Scope

HUB_DATA = "^hf://datasets/[^/]+/[^/]+"

RULES: tuple[Rule, ...] = (
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
