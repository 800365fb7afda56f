"""Rules for models, the job's own, a draft and a teacher: only the hub has revisions, and what can be staged."""

from ptapi.validation.predicate import Predicate, has, is_true, starts_with
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.pods.runtime_image_queue import IS_NATIVE


def _staged_only_if(predicate: Predicate, why: str) -> Rule:
    return SPEC.rule("model.stage", f"false, or true {why}", ~is_true("model.stage") | predicate)


_IS_OF_HUB = starts_with("uri", "hf://")
_MODELS = (
    ("spec.model", _IS_OF_HUB),
    ("spec.rollout.speculative.draft", _IS_OF_HUB),
    ("spec.algorithm.distill.teacher", has("uri") & _IS_OF_HUB),
    ("spec.rewards[].model", _IS_OF_HUB),
    ("spec.services[].model", _IS_OF_HUB),
)

RULES: tuple[Rule, ...] = (
    *(
        Scope(scope).unset_unless("revision", is_of_hub, "because only hf:// models have revisions")
        for scope, is_of_hub in _MODELS
    ),
    SPEC.rule(
        "model.panAndScan", "false, or true with model.images", ~is_true("model.panAndScan") | is_true("model.images")
    ),
    _staged_only_if(starts_with("model.uri", "hf://"), "with an hf:// model.uri, because only the hub is copied"),
    _staged_only_if(starts_with("output.uri", "gs://"), "with a gs:// output.uri, into whose bucket the model goes"),
    _staged_only_if(IS_NATIVE & ~is_true("pathways.headless"), "with posttrain's own trainer, which reads the copy"),
)
