"""Sorting letters with a mixture of experts: the sampler's choice of experts replayed in training, or not.

The task, its data and its bar are those of sorting. The model has two layers of 8 experts, of which a token uses 2;
GRPO computes in bfloat16, by one program that samples and another that trains, with eight updates per batch, so that
routers near a tie choose other experts in training than they did in sampling. `replay` uses the sampler's
(`rollout.routingReplay`), `own-choice` those that the routers choose anew; all else is the same.

Bar and seeds were written before the first run. The bar is that of sorting, for both; `own-choice` was expected to miss
it, as the long runs of arXiv 2510.11370 collapse without replay. It did not: 160 updates of a model this small end at
the same accuracy either way. What differs is the gap. Without replay the trainer's log-prob of a sampled token was up
to 0.9, 1.4 and 5.4 nats from the sampler's (seeds 0, 1, 2), with it up to 0.4; the KL between both is 2 to 6 times as
large without. Routers would have chosen at most 3.8% of the experts otherwise. A first form with four layers of 32
experts was stopped during its SFT: too slow for a laptop.
"""

from functools import partial
from typing import Any

from task import Bar, Place, Spec, Task, Trial

from tasks import sorting


def imitation(place: Place) -> Spec:
    """What people do."""
    spec = sorting.imitation(place)
    return {**spec, "model": {"uri": "random://tiny-moe"}, "training": {**spec["training"], "sequenceLength": 32}}


def reinforcement(place: Place, *, is_replayed: bool) -> Spec:
    """GRPO from there, with eight updates per batch of samples."""
    spec: dict[str, Any] = sorting.sampling(place, {"grpo": {"groupSize": 8, "updatesPerBatch": 8}})
    return {
        **spec,
        "model": {"uri": place.export("experts/sft")},
        "training": {**spec["training"], "steps": 160, "precision": {"compute": "bfloat16"}},
        "rollout": {**spec["rollout"], "routingReplay": is_replayed},
        "evaluation": {**spec["evaluation"], "everySteps": 16},
    }


TASK = Task(
    name="experts",
    title="Sorting with a mixture of experts: routing replayed, or not",
    story=__doc__,
    write_data=sorting.write_data,
    trials=(
        Trial("sft", imitation, Bar(sorting.EXACT, below=0.5)),
        *(
            Trial(
                name,
                partial(reinforcement, is_replayed=is_replayed),
                Bar(sorting.EXACT, least=0.5, gain=0.2),
                needs=("experts/sft",),
            )
            for name, is_replayed in (("replay", True), ("own-choice", False))
        ),
    ),
)
