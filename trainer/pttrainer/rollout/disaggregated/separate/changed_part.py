"""The changed part of a weight: which of its entries differ from the version that a sampler holds, and their values.

Few bf16 weights change in a step of reinforcement learning: an update is smaller than half of the last digit of most.
One weight is sent in the smallest of three forms:

    full      all of its values
    gaps      for each changed entry how many were skipped since the last, uint16 or uint32, and its value
    blocks    for each block of 256 entries how many changed, uint16; for each changed entry its place, uint8; the value

Entries are compared as bits: a changed sign of zero and a NaN are sent, and what is applied is equal to the bit.
"""

from typing import NamedTuple

import numpy as np

from pttrainer.rollout.disaggregated.separate.messages import MessageError

FULL, GAPS, BLOCKS = "full", "gaps", "blocks"
BLOCK = 256
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


class Part(NamedTuple):
    """What is sent of a weight. changed: entries that differ."""

    form: str
    arrays: list[np.ndarray]
    changed: int

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays."""
        return sum(x.nbytes for x in self.arrays)


def whole(new: np.ndarray) -> Part:
    """Return all of a weight."""
    return Part(FULL, [new], new.size)


def changed(old: np.ndarray, new: np.ndarray) -> Part:
    """Return what differs between two versions of a weight, in the smallest form."""
    places = np.flatnonzero(bits(old) != bits(new))
    values = bits(new)[places]
    gaps = np.diff(places, prepend=-1) - 1
    gaps = gaps.astype(np.uint16 if not gaps.size or gaps.max() < 1 << 16 else np.uint32)
    blocks = -(-new.size // BLOCK)
    sizes = {FULL: new.nbytes, GAPS: gaps.nbytes, BLOCKS: 2 * blocks + places.size}
    sizes |= {form: sizes[form] + values.nbytes for form in (GAPS, BLOCKS)}
    form = min(sizes, key=lambda form: sizes[form])
    if form == FULL:
        return Part(FULL, [new], places.size)
    if form == GAPS:
        return Part(GAPS, [gaps, values], places.size)
    counts = np.bincount(places // BLOCK, minlength=blocks).astype(np.uint16)
    return Part(BLOCKS, [counts, (places % BLOCK).astype(np.uint8), values], places.size)


def applied(old: np.ndarray, form: str, arrays: list[np.ndarray]) -> np.ndarray:
    """Return the new version of a weight, in memory of its own. Raises MessageError if the part does not fit."""
    if form == FULL:
        new = arrays[0]
        if new.shape != old.shape or new.dtype != old.dtype:
            raise MessageError(f"has {new.dtype}{list(new.shape)}; accepted: {old.dtype}{list(old.shape)}")
        return np.array(new)
    try:
        new = np.array(old)
        *where, values = arrays
        bits(new)[_places(form, where)] = values
    except (ValueError, IndexError) as error:
        raise MessageError(f"the changed part does not fit: {error}") from error
    return new


def _places(form: str, where: list[np.ndarray]) -> np.ndarray:
    if form == GAPS:
        (gaps,) = where
        return np.cumsum(gaps.astype(np.int64) + 1) - 1
    counts, places = where
    all_places: np.ndarray = np.repeat(np.arange(len(counts)) * BLOCK, counts) + places
    return all_places


def bits(x: np.ndarray) -> np.ndarray:
    """Return the entries of a contiguous array as unsigned integers, as a view."""
    return x.reshape(-1).view(_BITS[x.dtype.itemsize])
