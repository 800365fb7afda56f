"""Rules for models, the job's own, a draft and a teacher: only the hub has revisions, and what can be staged."""

from ptapi.validation.predicate import Predicate, is_true, starts_with
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.pods.runtime_image_queue import IS_NATIVE


def _staged_only_if(predicate: Predicate, why: str) -> Rule:
    return SPEC.rule("model.stage", f"false, or true {why}", ~is_true("model.stage") | predicate)


RULES: tuple[Rule, ...] = (
    *(
        scope.unset_unless("revision", starts_with("uri", "hf://"), "because only hf:// models have revisions")
        for scope in map(
            Scope,
            ("spec.model", "spec.rollout.speculative.draft", "spec.algorithm.distill.teacher", "spec.rewards[].model"),
        )
    ),
    SPEC.rule(
        "model.panAndScan", "false, or true with model.images", ~is_true("model.panAndScan") | is_true("model.images")
    ),
    _staged_only_if(starts_with("model.uri", "hf://"), "with an hf:// model.uri, because only the hub is copied"),
    _staged_only_if(starts_with("output.uri", "gs://"), "with a gs:// output.uri, into whose bucket the model goes"),
    _staged_only_if(IS_NATIVE & ~is_true("pathways.headless"), "with posttrain's own trainer, which reads the copy"),
)
