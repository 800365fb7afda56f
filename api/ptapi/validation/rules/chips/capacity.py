"""Rules for capacity: what each type of it reads, and which types go with the accelerator and the queue."""

from ptapi.validation.predicate import Predicate, differs, each_once, empty, equals, has, starts_with, unset
from ptapi.validation.rule import SPEC, Rule, Scope

IS_EXISTING = Predicate(
    "self.capacity.all(option, option.type == 'existing')",
    lambda spec: all(option.type == "existing" for option in spec.capacity),
)
_IS_NOT_QUEUED = Predicate(
    "self.capacity.all(option, option.type != 'queuedProvisioning')",
    lambda spec: all(option.type != "queuedProvisioning" for option in spec.capacity),
)
_OPTION = Scope("spec.capacity[]")

RULES: tuple[Rule, ...] = (
    _OPTION.rule(
        "reservation",
        "the reservation's name with type: reservation, unset with every other type",
        has("reservation").iff(equals("type", "reservation")),
    ),
    _OPTION.rule(
        "zones",
        "unset with type: existing, whose nodes are where they are",
        differs("type", "existing") | empty("zones"),
    ),
    _OPTION.rule("zones", "each zone once", each_once("zones")),
    SPEC.rule("capacity", "each option once", each_once("capacity")),
    SPEC.rule(
        "capacity",
        "existing only, because a cpu accelerator needs no TPU node pool",
        ~starts_with("accelerator.type", "cpu-") | IS_EXISTING,
    ),
    SPEC.rule(
        "capacity",
        "queuedProvisioning without queue only: Kueue makes a ProvisioningRequest itself, for nodes that are existing",
        unset("queue") | _IS_NOT_QUEUED,
        "capacity: [{type: existing}], and a ClusterQueue with Kueue's ProvisioningRequest check",
    ),
    SPEC.rule(
        "accelerator.slices",
        "1 with capacity of type queuedProvisioning: GKE takes one pool's nodes per ProvisioningRequest",
        equals("accelerator.slices", 1) | _IS_NOT_QUEUED,
    ),
)
