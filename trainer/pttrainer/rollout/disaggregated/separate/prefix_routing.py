"""Which sampler draws which prompts: the one that holds their prefix, and no one more than its share.

A prompt whose beginning an earlier turn put somewhere goes there, unless that sampler has `SLACK` times an equal share
already. Others go by rendezvous hashing of their first page, at most an equal share each: equal beginnings meet, and
shares stay equal. The result follows from the prompts, from what was routed before and from the number of samplers,
never from the clock or from which of them are away: so a lost sampler's share is drawn elsewhere as one call of the
same shape, and its samples are the same to the bit.

Letters: P prompts, N samplers.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from pttrainer.rollout.engine import Prompt
from pttrainer.rollout.native.buckets import PAGE
from pttrainer.rollout.native.prefix_reuse.page_index import names_of

SLACK = 1.25
"""Most that a sampler may have for the prefixes that it holds, in equal shares."""


class PrefixRouting:
    """Assigns prompts to `samplers` homes. keeps_prompts: samplers keep beginnings, so it remembers where they are."""

    def __init__(self, samplers: int, *, keeps_prompts: bool) -> None:
        self._samplers, self._keeps_prompts = samplers, keeps_prompts
        self._homes: dict[bytes, int] = {}

    def assign(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Return the places of the prompts of each home; every prompt has one."""
        share = math.ceil(len(prompts) / self._samplers)
        most = math.ceil(SLACK * share)
        names = [names_of(prompt.tokens) for prompt in prompts]
        homes: list[list[int]] = [[] for _ in range(self._samplers)]
        without = []
        for place, of_prompt in enumerate(names):
            home = next((self._homes[name] for name in reversed(of_prompt) if name in self._homes), None)
            if home is None or len(homes[home]) >= most:
                without.append(place)
            else:
                homes[home].append(place)
        for place in without:
            home = next(home for home in self._ranked(prompts[place]) if len(homes[home]) < share)
            homes[home].append(place)
        for home, places in enumerate(homes if self._keeps_prompts else ()):
            for place in places:
                self._homes |= dict.fromkeys(names[place], home)
        return homes

    def forget(self) -> None:
        """Forget where beginnings are."""
        self._homes.clear()

    def _ranked(self, prompt: Prompt) -> list[int]:
        """Return all homes, the best for this prompt first: each draws a number from the prompt's first page."""
        first = np.asarray(prompt.tokens[:PAGE], np.int32).tobytes()
        return sorted(
            range(self._samplers),
            key=lambda home: hashlib.sha256(home.to_bytes(4, "big") + first).digest(),
            reverse=True,
        )
