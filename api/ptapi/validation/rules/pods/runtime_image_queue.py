"""Rules for the program of the pods, its image, and the queue that they wait in."""

from ptapi.validation.predicate import compare, count_set, equals, has, unset
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.chips.capacity import IS_EXISTING

POOLS_PER_CHECK = 8
"""Node pools that a job's pods can be bound to through Kueue: a toleration each, of which a check has eight."""
_KINDS = ("native", "maxtext", "container", "function")
IS_NATIVE = unset("runtime") | ~(has("runtime.container") | has("runtime.maxtext") | has("runtime.function"))

RULES: tuple[Rule, ...] = (
    SPEC.rule(
        "runtime",
        f"at most one of {', '.join(_KINDS)}",
        unset("runtime") | count_set(tuple(f"runtime.{kind}" for kind in _KINDS), "<=", 1),
    ),
    Scope("spec.runtime.function").exactly_one("uri", "code"),
    SPEC.rule(
        "preflight",
        "Skip or unset, because posttrain's own trainer is what is compiled",
        unset("preflight") | equals("preflight", "Skip") | IS_NATIVE,
    ),
    SPEC.rule(
        "image",
        "an image with the program that the runtime names, because the operator's own has posttrain's trainer",
        has("image") | IS_NATIVE | has("runtime.function"),
        "image: registry/name@sha256:…",
    ),
    SPEC.unset_unless("queuePriorityClassName", has("queue"), "or together with queue, in which it orders"),
    SPEC.rule(
        "accelerator.slices",
        f"at most {POOLS_PER_CHECK} with queue and capacity that makes node pools: an admission check of Kueue can "
        "name no more",
        unset("queue") | IS_EXISTING | compare("accelerator.slices", "<=", POOLS_PER_CHECK),
    ),
)
