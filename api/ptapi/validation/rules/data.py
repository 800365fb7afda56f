"""Rules for data: when rows are held out, and whose revisions and columns there are."""

from ptapi.spec import DataSource
from ptapi.validation.predicate import Predicate, equals, has, starts_with
from ptapi.validation.rule import SPEC, Rule, Scope


def _columns_differ(source: DataSource) -> bool:
    names = [name for name in source.columns.model_dump().values() if name is not None]
    return len(set(names)) == len(names)


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
            scope.rule("columns", "different columns", Predicate("", _columns_differ)),
            scope.unset_unless("revision", starts_with("uri", "hf://"), "because only hf:// data have revisions"),
        )
    ),
)
