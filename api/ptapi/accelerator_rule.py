"""The rule about accelerator names, as the API server can apply it: a pattern of all names, and the nearest two.

The pattern takes every shape (`v5p-4x4x4`); whether a shape, or a topology, exists is left to `ptapi.devices`.
The message is computed by a CEL expression, because "not known" is of little help without the names beside it.
"""

from __future__ import annotations

from ptapi.accelerators import FAMILIES, Generation, sizes, table

UNKNOWN = f"is not a known accelerator; a type is a family and a number, of {FAMILIES}"
CPU_PATTERN = "cpu-([1-9]|[1-5][0-9]|6[0-4])"


def name_rule() -> str:
    """CEL over spec.accelerator: whether the type is one of the names."""
    patterns = [CPU_PATTERN, *(_pattern(name, facts) for name, facts in table().items())]
    return f"self.type.matches('^({'|'.join(patterns)})$')"


def nearest_message() -> str:
    """CEL over spec.accelerator: the message for an unknown name, with its nearest neighbours and their chips."""
    choices = "".join(_choice(name, facts) for name, facts in table().items())
    return f"{choices}'%s: {UNKNOWN}'.format([self.type])"


def _pattern(generation: str, facts: Generation) -> str:
    counts = "|".join(str(size) for size in sizes(generation))
    shape = "[1-9][0-9]*" + "x[1-9][0-9]*" * (facts["dims"] - 1)
    return f"({'|'.join(facts['names'])})-({counts}|{shape})"


def _choice(generation: str, facts: Generation) -> str:
    """`the type is of this family ? its two neighbours : `, to be followed by what else it may be.

    `format` and no `+`: the API server's cost estimate takes text made of a number for one without bound.
    """
    known = sizes(generation)
    number, cores = "int(self.type.split('-')[1])", facts["coresPerChip"]
    below = f"{known[::-1]}.filter(n, n < {number})[0]"
    above = f"{known}.filter(n, n > {number})[0]"
    one, two = "%s-%d (%d chips)", "%s-%d (%d chips), %s-%d (%d chips)"
    nearest = (
        f"{number} < {known[0]} ? {_text(one, 'f', known[0], known[0] // cores)} : "
        f"{number} > {known[-1]} ? {_text(one, 'f', known[-1], known[-1] // cores)} : "
        f"[[{below}, {above}]].map(p, {_text(two, 'f', 'p[0]', f'p[0] / {cores}', 'f', 'p[1]', f'p[1] / {cores}')})[0]"
    )
    families = "|".join(facts["names"])
    return f"self.type.matches('^({families})-[1-9][0-9]{{0,8}}$') ? [self.type.split('-')[0]].map(f, {nearest})[0] : "


def _text(template: str, *values: object) -> str:
    arguments = ", ".join(str(value) for value in ("self.type", *values))
    return f"'%s: does not exist; nearest: {template}'.format([{arguments}])"
