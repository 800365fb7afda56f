"""What the accelerator requires of a job, as far as CEL can say it: names, topologies, the mesh, the batch.

Generated from the accelerators table, so that `kubectl apply` refuses `v5p-9`, and names its neighbours, before
anything is stored. Left to Python (`ptapi.validation.accelerator_rules`): which shapes exist, and jobs that name a
shape (`v5p-4x4x4`). CEL computes the messages, too: "not known" is of little help without the nearest names.
"""

from ptapi.accelerators import FAMILIES, Generation, sizes, table
from ptapi.accelerators.table import gpu_families
from ptapi.validation.predicate import own

UNKNOWN = f"is not a known accelerator; a type is a family and a number, of {FAMILIES}"
TOPOLOGY = "does not fit the accelerator: a topology has as many chips as the type; GPUs and cpu-N have none"
MESH = "axes whose product is the number of JAX devices of all slices"
BATCH = "a multiple of the ways in which the devices split the batch (data x fsdp x expert)"
SHAPE = "^[0-9]{1,4}x[0-9]{1,4}(x[0-9]{1,4})?$"
SIZED = "^[a-z0-9-]+-[1-9][0-9]{0,5}$"
CPU_PATTERN = "cpu-([1-9]|[1-5][0-9]|6[0-4])"
_SIZE = "self.type.split('-')[self.type.split('-').size() - 1]"
"""The last word of a type: its number or shape. Names of GPUs have several words."""


def name_rule() -> str:
    """Return CEL over spec.accelerator: true if the type is one of the names."""
    patterns = [CPU_PATTERN, *(_pattern(name, facts) for name, facts in table().items())]
    return f"self.type.matches('^({'|'.join(patterns)})$')"


def nearest_message() -> str:
    """Return CEL over spec.accelerator: the message for an unknown name, with the nearest names and their chips."""
    alike: dict[tuple[object, ...], list[str]] = {}
    for name, facts in table().items():  # one choice for all families of the same sizes: kubectl keeps a CRD in 256 KiB
        alike.setdefault((*sizes(name), facts["coresPerChip"], facts["kind"]), []).append(name)
    choices = "".join(_choice(names) for names in alike.values())
    return f"{choices}'%s: {UNKNOWN}'.format([self.type])"


def topology_rule() -> str:
    """Return CEL over spec.accelerator: true if the topology has as many chips as the type."""
    dims = "self.topology.split('x')"
    product = f"int({dims}[0]) * int({dims}[1]) * ({dims}.size() == 3 ? int({dims}[2]) : 1)"
    number = f"int({_SIZE})"
    chips = f"{number} / (self.type.matches('^({_of_two_cores()})-') ? 2 : 1)"
    fits = f"!self.type.matches('{SIZED}') || {product} == {chips}"
    shaped = f"self.topology.matches('{SHAPE}')"
    without = f"self.type.matches('^({'|'.join(['cpu', *gpu_families()])})-')"
    return f"!has(self.topology) || (!{without} && (!{shaped} || {fits}))"


_IS_SPLIT = "self.rollout.placement == 'disaggregated'"
"""Other chips sample: only Python knows how many are left to train (`ptapi.accelerators.trainer_sampler_split`)."""


def mesh_rule() -> str:
    """Return CEL over spec: true if the product of the mesh's axes is the devices; `auto` takes what is left."""
    axes = "self.training.parallelism"
    is_whole = f"{axes}.data == 'auto' || {axes}.fsdp == 'auto'"
    # The schema refuses 0 slices and an axis of 0; this rule adds no second message.
    fits = f"p < 1 || (d % p == 0 && (d == p || {is_whole}))"
    sized = _sized(f"[{_product('data', 'fsdp', 'tensor', 'sequence', 'expert')}].all(p, {fits})")
    return f"{_IS_SPLIT} || {sized}"


def batch_rule(field: str) -> str:
    """Return CEL over spec: true if the batch, or micro-batch, divides over data x fsdp x expert in our own trainer."""
    size = f"self.training.{field}"
    present = "" if field == "batchSize" else f"!has({size}) || "
    kinds = " || ".join(f"has({own(f'runtime.{kind}')})" for kind in ("maxtext", "container", "function"))
    others = f"has(self.runtime) && ({kinds})"
    fits = _sized(f"[{_product('tensor', 'sequence')}].all(t, t < 1 || d < t || {size} % (d / t) == 0)")
    return f"{present}{_IS_SPLIT} || ({others}) || {fits}"


def batch_message(field: str) -> str:
    """Return CEL over spec: the message that says how many ways the batch is split, and by what."""
    template = "%d: a multiple of %d, because %d x %s splits the batch %d ways (data x fsdp x expert)"
    ways = f"{_DEVICES} / {_product('tensor', 'sequence')}"
    slices = "self.accelerator.slices, self.accelerator.type"
    return f"[{ways}].map(w, '{template}'.format([self.training.{field}, w, {slices}, w]))[0]"


def mesh_message() -> str:
    """Return CEL over spec: the message that says what the product of the axes must be."""
    text = "axes whose product is %d, the JAX devices of %d x %s"
    return f"'{text}'.format([{_DEVICES}, self.accelerator.slices, self.accelerator.type])"


def _of_two_cores(devices: int | None = None) -> str:
    """Return a pattern of the families whose numbers count two cores per chip; devices: JAX devices per chip."""
    return "|".join(
        name
        for facts in table().values()
        if facts["coresPerChip"] == 2 and devices in (None, facts["jaxDevicesPerChip"])
        for name in facts["names"]
    )


# A chip of two cores is one device, but for tpu7x, where each core is one.
_DEVICES = (
    f"(int({_SIZE.replace('self.', 'self.accelerator.')}) * self.accelerator.slices / "
    f"(self.accelerator.type.matches('^({_of_two_cores(devices=1)})-') ? 2 : 1))"
)


def _sized(condition: str) -> str:
    """Return the condition over d, the devices of all slices; a type that names a shape is left to Python."""
    return f"!self.accelerator.type.matches('{SIZED}') || [{_DEVICES}].all(d, {condition})"


def _product(*axes: str) -> str:
    sizes = (f"self.training.parallelism.{axis}" for axis in axes)
    return " * ".join(f"(type({size}) == int ? int({size}) : 1)" for size in sizes)


def _pattern(generation: str, facts: Generation) -> str:
    counts = "|".join(str(size) for size in sizes(generation))
    shape = "[1-9][0-9]*" + "x[1-9][0-9]*" * (facts["dims"] - 1)
    accepted = counts if facts["kind"] == "gpu" else f"{counts}|{shape}"
    return f"({'|'.join(facts['names'])})-({accepted})"


def _choice(generations: list[str]) -> str:
    """Return `type of these families ? message with the nearest names : `, which the next choice follows.

    Their sizes are the same.

    With `format`, not `+`: the API server's cost estimate takes text concatenated from a number for unbounded.
    """
    counts, facts = sizes(generations[0]), table()[generations[0]]
    cores, unit = facts["coresPerChip"], "GPUs" if facts["kind"] == "gpu" else "chips"
    one, two = f"%s-%d (%d {unit})", f"%s-%d (%d {unit}), %s-%d (%d {unit})"
    below, above = "p[0][p[0].size() - 1]", "p[1][0]"
    nearest = (
        f"s < {counts[0]} ? {_text(one, 'f', counts[0], counts[0] // cores)} : "
        f"s > {counts[-1]} ? {_text(one, 'f', counts[-1], counts[-1] // cores)} : "
        f"[{counts}].map(c, [c.filter(n, n < s), c.filter(n, n > s)])"
        f".map(p, {_text(two, 'f', below, f'{below} / {cores}', 'f', above, f'{above} / {cores}')})[0]"
    )
    families = "|".join(name for each in generations for name in table()[each]["names"])
    family = f"self.type.substring(0, self.type.size() - {_SIZE}.size() - 1)"
    bound = f"[int({_SIZE})].map(s, [{family}].map(f, {nearest})[0])[0]"
    return f"self.type.matches('^({families})-[1-9][0-9]{{0,8}}$') ? {bound} : "


def _text(template: str, *values: object) -> str:
    arguments = ", ".join(str(value) for value in ("self.type", *values))
    return f"'%s: does not exist; nearest: {template}'.format([{arguments}])"
