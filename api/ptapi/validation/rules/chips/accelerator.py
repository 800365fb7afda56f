"""Rules for the accelerator and the mesh on it; Python says more of both (`ptapi.validation.accelerator_rules`)."""

from ptapi.accelerators.table import families, gpu_families, single_host_types
from ptapi.accelerators.type_names import ONE_OF_GPUS
from ptapi.validation import accelerator_cel as cel
from ptapi.validation.predicate import (
    Predicate,
    compare,
    empty,
    equals,
    has,
    is_true,
    matches,
    one_of,
    starts_with,
    unset,
)
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.chips.capacity import IS_EXISTING
from ptapi.validation.rules.chips.pathways import IS_USED


def checked_by_table(_: object) -> bool:
    """Return True: `ptapi.validation.accelerator_rules` checks it, with the accelerators table at hand."""
    return True


def _chip_rule(scope: str, field: str, accepted: str, rule: str, message: str = "") -> Rule:
    return Rule(scope, field, accepted, Predicate(rule, checked_by_table), cel_message=message)


_HAS_EACH_FLAG_ONCE = Predicate(
    "!has(self.xlaFlags) || self.xlaFlags.all(a, self.xlaFlags.exists_one(b, b.split('=')[0] == a.split('=')[0]))",
    lambda accelerator: len({flag.partition("=")[0] for flag in accelerator.xla_flags}) == len(accelerator.xla_flags),
)

IS_INELASTIC = unset("accelerator.minSlices") | compare("accelerator.minSlices", "==", "accelerator.slices")
"""The run goes on with no fewer slices than it has. Of the spec."""
_DYNAMIC = "accelerator.dynamicSlicing"
_IRONWOOD = "|".join(family for family, generation in families().items() if generation == "tpu7x")

RULES: tuple[Rule, ...] = (
    Scope("spec.accelerator").rule(
        "dynamicSlicing",
        "false, because GKE forms slices of tpu7x only, of whole hosts: tpu7x-8 and larger",
        ~is_true("dynamicSlicing") | matches("type", f"^({_IRONWOOD})-([2-9]x.+|[1-9][0-9]+x.+|8|[1-9][0-9]+)$"),
    ),
    SPEC.rule(
        "queue",
        f"a LocalQueue, because of {_DYNAMIC}: Kueue chooses the sub-blocks and GKE forms the slices",
        ~is_true(_DYNAMIC) | has("queue"),
    ),
    SPEC.rule(
        "capacity",
        f"existing only, because of {_DYNAMIC}: the sub-blocks are node pools that are there",
        ~is_true(_DYNAMIC) | IS_EXISTING,
    ),
    SPEC.rule(
        "rollout.placement",
        f"another than separate, because of {_DYNAMIC}: samplers have no slices of their own",
        ~is_true(_DYNAMIC) | unset("rollout.separate"),
    ),
    Scope("spec.accelerator").rule(
        "xlaFlags",
        "none with a cpu accelerator, which no TPU compiler compiles for",
        ~starts_with("type", "cpu-") | empty("xlaFlags"),
    ),
    Scope("spec.accelerator").rule("xlaFlags", "each flag once", _HAS_EACH_FLAG_ONCE),
    # cloud.google.com/kubernetes-engine/docs/how-to/tpu-multislice: "Multislice availability in GKE".
    SPEC.rule(
        "accelerator.slices",
        "1, because Google's Multislice joins slices of several hosts only, and this type is one host",
        equals("accelerator.slices", 1) | ~one_of("accelerator.type", *single_host_types()) | IS_USED,
        "take one larger slice instead",
    ),
    Scope("spec.accelerator").rule(
        "slices",
        ONE_OF_GPUS,
        equals("slices", 1) | ~matches("type", f"^({'|'.join(gpu_families())})-"),
        "a larger number in accelerator.type",
    ),
    Scope("spec.accelerator").rule(
        "minSlices",
        "at most slices",
        unset("minSlices") | compare("minSlices", "<=", "slices"),
    ),
    SPEC.rule(
        "accelerator.minSlices",
        "unset, or as many as slices, because pathways.enabled is true: a program of Pathways has elasticSlices",
        IS_INELASTIC | ~IS_USED,
    ),
    _chip_rule("spec.accelerator", "type", cel.UNKNOWN, cel.name_rule(), cel.nearest_message()),
    _chip_rule("spec.accelerator", "topology", cel.TOPOLOGY, cel.topology_rule()),
    _chip_rule("spec", "training.parallelism", cel.MESH, cel.mesh_rule(), cel.mesh_message()),
    *(
        _chip_rule("spec", f"training.{name}", cel.BATCH, cel.batch_rule(name), cel.batch_message(name))
        for name in ("batchSize", "microBatchSize")
    ),
)
