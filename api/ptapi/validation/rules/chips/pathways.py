"""Rules for Pathways. CEL does not see `pathways.enabled`, a word or a boolean, so Python alone checks most of them."""

from ptapi.accelerators.one_process import uses_pathways
from ptapi.validation.predicate import Predicate, at, empty, equals, is_true, starts_with, unset
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.pods.runtime_image_queue import IS_NATIVE


def enabled(field: str = "enabled") -> Predicate:
    """Require that Pathways is asked for; field: its switch, from the rule's scope on."""
    return Predicate("", lambda node: at(node, field) is True)


IS_USED = Predicate("", uses_pathways)
"""One process drives all chips, because the job or `auto` says so. Of the spec."""
_PATHWAYS = Scope("spec.pathways")

RULES: tuple[Rule, ...] = (
    SPEC.rule(
        "output.uri",
        "gs://…, because pathways.enabled is true and its workers share no disk with the trainer",
        ~IS_USED | starts_with("output.uri", "gs://"),
    ),
    *(
        SPEC.rule(
            f"pathways.{field}", "unset, because pathways.enabled is not true", IS_USED | empty(f"pathways.{field}")
        )
        for field in ("serverImage", "proxyImage", "colocatedPythonImage", "serverArgs", "proxyArgs", "workerArgs")
    ),
    *(
        SPEC.rule(
            f"resources.{field}",
            "unset, because pathways.enabled is not true",
            IS_USED | unset("resources") | unset(f"resources.{field}"),
        )
        for field in ("pathwaysResourceManager", "pathwaysProxy", "pathwaysWorker", "colocatedPython")
    ),
    _PATHWAYS.rule(
        "headless",
        "false, because pathways.enabled is not true",
        enabled() | ~is_true("headless"),
        "pathways: {enabled: true, headless: true}",
    ),
    SPEC.rule(
        "runtime",
        "unset, because pathways.headless starts no program",
        ~is_true("pathways.headless") | IS_NATIVE,
    ),
    SPEC.less_than(
        "pathways.elasticSlices",
        "accelerator.slices",
        "because one slice at least must be there",
        unless=equals("pathways.elasticSlices", 0),
    ),
    SPEC.rule(
        "pathways.elasticSlices",
        "0, because pathways.enabled is not true",
        equals("pathways.elasticSlices", 0) | IS_USED,
    ),
)
