"""One step of reinforcement learning as phases: which chips do what, from when to when, and which wait.

    sync       weights into the sampler's layout, or to the chips that sample
    prefill    the prompts
    decode     the completions, token by token
    scoring    log-probs (and values) before the first update, where the algorithm has such a pass
    update     the optimizer step
    idle       chips of one side while the other works

Chips that do everything run the phases one after the other. Where other chips sample, they take turns, or, with batches
sampled ahead, both start after the weights have moved (`rollout.disaggregated.async_pipeline`). Every chip is in one
phase at any time, so the phases' chip-seconds add up to the step's. A rollout that serves several steps counts by its
share of each. Each phase lasts as long as its slowest limit (`roofline`): the times are least times.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pttrainer.preflight.shapes.job_shapes import JobShapes

Chips = Literal["all", "training", "sampling"]
IDLE = "idle"


class Part(NamedTuple):
    """A phase before it has a place. bound: by which limit, `network` where the move of weights takes longest."""

    name: str
    seconds: float
    bound: str


@dataclass(frozen=True)
class Phase:
    """Seconds from the beginning of the step, and how many chips of which side are in it."""

    name: str
    on: Chips
    chips: int
    start: float
    end: float
    bound: str

    @property
    def chip_seconds(self) -> float:
        """Return chips times seconds."""
        return self.chips * (self.end - self.start)


def timeline(of: JobShapes, sync: Part, sampled: list[Part], trained: list[Part]) -> list[Phase]:
    """Return the phases, in order of their beginning; those that take no time are left out.

    sync: on all chips; sampled, trained: one after the other on the chips that sample and on those that train.
    """
    if of.sampler is None:
        return [phase for phase in _row("all", of.held_chips, 0.0, [sync, *sampled, *trained]) if phase.end]
    training, sampling = of.training_slice.total_chips, of.sampling_slice.total_chips * of.sampler_count
    together = _row("all", training + sampling, 0.0, [sync])
    begun = sync.seconds
    is_ahead = of.spec.rollout.steps_ahead(of.spec.algorithm.updates_per_batch) > 0
    drawn = _row("sampling", sampling, begun, sampled)
    end = _end(drawn, begun)
    learned = _row("training", training, begun if is_ahead else end, trained)
    last = max(end, _end(learned, begun))
    waiting = [
        Phase(IDLE, "training", training, begun, learned[0].start if learned else last, ""),
        Phase(IDLE, "training", training, _end(learned, last), last, ""),
        Phase(IDLE, "sampling", sampling, end, last, ""),
    ]
    taken = [phase for phase in [*together, *drawn, *learned, *waiting] if phase.end > phase.start]
    return sorted(taken, key=lambda phase: (phase.start, phase.on))


def idle_share(phases: Iterable[Phase]) -> float:
    """Return the share of chip-seconds in which chips wait for others; 0 of nothing."""
    listed = list(phases)
    total = sum(phase.chip_seconds for phase in listed)
    return sum(phase.chip_seconds for phase in listed if phase.name == IDLE) / total if total else 0.0


def _row(on: Chips, chips: int, start: float, parts: Iterable[Part]) -> list[Phase]:
    phases = []
    for part in parts:
        if part.seconds:
            phases.append(Phase(part.name, on, chips, start, start + part.seconds, part.bound))
            start += part.seconds
    return phases


def _end(phases: list[Phase], otherwise: float) -> float:
    return phases[-1].end if phases else otherwise
