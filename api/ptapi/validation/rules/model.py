"""Rules for models, the job's own and the draft of speculation: only the hub has revisions."""

from ptapi.validation.condition import starts_with
from ptapi.validation.rule import Rule, Scope

RULES: tuple[Rule, ...] = (
    *(
        scope.unset_unless("revision", starts_with("uri", "hf://"), "because only hf:// models have revisions")
        for scope in (Scope("spec.model"), Scope("spec.rollout.speculative.draft"))
    ),
)
