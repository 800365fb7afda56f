"""Which page of the store holds which tokens, by content; the pages used least recently make room.

A page holds PAGE tokens, or the last ones of a prompt, and is named by them and all tokens before them: prompts that
begin alike name the same pages. On the host alone; the contents are in `page_store`.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pttrainer.rollout.native.buckets import PAGE


class Placed(NamedTuple):
    """The pages of a prompt in order. first_new: how many of them, from the beginning, were there before."""

    pages: list[int]
    first_new: int


class PageIndex:
    """Gives out the pages 0, …, count - 1."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._pages: OrderedDict[bytes, int] = OrderedDict()  # least recently used first

    def kept(self, names: Sequence[bytes]) -> int:
        """Return how many pages, from the beginning, are there."""
        return next((place for place, name in enumerate(names) if name not in self._pages), len(names))

    def place(self, tokens: int, names: Sequence[bytes], in_use: set[int]) -> Placed | None:
        """Return the pages of a prompt of so many tokens; None if too few are left.

        in_use: pages that must stay as they are; the prompt's own are added.
        """
        first_new = self.kept(names)
        held = {self._pages[name] for name in names[:first_new]}
        if len(names) - first_new > self.count - len(in_use | held):
            return None
        in_use |= held
        for name in names[first_new:]:
            page = self._pages.pop(name) if name in self._pages else self._take(in_use)
            self._pages[name] = page
            in_use.add(page)
        for name in reversed(names):  # so that the end of a prompt makes room before its beginning
            self._pages.move_to_end(name)
        if tokens % PAGE:  # no longer prompt begins with a page that is not full
            self._pages.move_to_end(names[-1], last=False)
        return Placed([self._pages[name] for name in names], first_new)

    def _take(self, in_use: set[int]) -> int:
        if self._free:
            return self._free.pop()
        oldest = next(name for name, page in self._pages.items() if page not in in_use)
        return self._pages.pop(oldest)


def names_of(tokens: Sequence[int]) -> list[bytes]:
    """Return the names of a prompt's pages."""
    numbers, name, names = np.asarray(tokens, np.int32), b"", []
    for start in range(0, len(numbers), PAGE):
        name = hashlib.sha256(name + numbers[start : start + PAGE].tobytes()).digest()
        names.append(name)
    return names
