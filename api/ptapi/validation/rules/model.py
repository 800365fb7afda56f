"""Rules for models, the job's own, a draft and a teacher: only the hub has revisions."""

from ptapi.validation.predicate import starts_with
from ptapi.validation.rule import Rule, Scope

RULES: tuple[Rule, ...] = (
    *(
        scope.unset_unless("revision", starts_with("uri", "hf://"), "because only hf:// models have revisions")
        for scope in map(Scope, ("spec.model", "spec.rollout.speculative.draft", "spec.algorithm.distill.teacher"))
    ),
)
