"""Groups whose samples are not all complete: their tokens so far, and the weights that made each of them.

A version is the number of optimizer steps that the weights had taken. A token keeps the log-prob that its own version
gave it, so the importance ratio of each token is to the policy that drew it, however many policies drew a sample.

Letters: G samples of a prompt, T tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pttrainer.checkpoint import batch_json
from pttrainer.data.prompts import Question
from pttrainer.rollout.engine import Completions


@dataclass
class PartialSample:
    """The tokens of a sample so far. is_complete: no more will come; ended: an end token or a stop string ended it."""

    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    ended: bool = False
    is_complete: bool = False


@dataclass
class UnfinishedGroup:
    """The samples of one prompt. number: the prompt's, in the run's order."""

    number: int
    question: Question
    samples: list[PartialSample]

    @property
    def is_complete(self) -> bool:
        """Return True if all samples are."""
        return all(sample.is_complete for sample in self.samples)

    @property
    def oldest(self) -> int | None:
        """Return the first version of any token; None if there are no tokens."""
        firsts = [sample.versions[0] for sample in self.samples if sample.versions]
        return min(firsts) if firsts else None

    @property
    def tokens(self) -> int:
        """Return the number of tokens so far."""
        return sum(len(sample.tokens) for sample in self.samples)


class Goal(NamedTuple):
    """When a draw may end: so many groups are complete, and all of the numbers in `due`, as far as they are here."""

    complete: int
    due: frozenset[int]

    def is_reached(self, groups: Sequence[UnfinishedGroup]) -> bool:
        """Return True if these groups are enough."""
        complete = sum(group.is_complete for group in groups)
        return complete >= self.complete and all(group.is_complete for group in groups if group.number in self.due)


def begun(number: int, question: Question, samples: int) -> UnfinishedGroup:
    """Return a group without tokens."""
    return UnfinishedGroup(number, question, [PartialSample() for _ in range(samples)])


def completions(groups: Sequence[UnfinishedGroup]) -> Completions:
    """Return the samples of complete groups, group by group."""
    samples = [sample for group in groups for sample in group.samples]
    lengths_N = np.array([len(sample.tokens) for sample in samples], np.int32)
    shape = len(samples), max(1, int(lengths_N.max(initial=0)))
    tokens_NT, logps_NT = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    for row, sample in enumerate(samples):
        tokens_NT[row, : lengths_N[row]], logps_NT[row, : lengths_N[row]] = sample.tokens, sample.logps
    return Completions(tokens_NT, logps_NT, lengths_N, np.array([sample.ended for sample in samples], bool))


def age_facts(samples: Sequence[Sequence[int]], step: int) -> dict[str, float]:
    """Return how old the tokens of a batch are. samples: the version of each token; step: of the batch.

    `/share/K`: of tokens that are K steps old, for each K there is.
    """
    ages = step - np.concatenate([np.asarray(versions, np.int64) for versions in samples])
    counts = [len(set(versions)) for versions in samples]
    shares = {f"/share/{age}": float(np.mean(ages == age)) for age in np.unique(ages).tolist()}
    return {
        "": float(ages.mean()),
        "/max": float(ages.max()),
        "/versions": float(np.mean(counts)),
        "/versions/max": float(max(counts)),
        **shares,
    }


def to_json(group: UnfinishedGroup) -> dict[str, Any]:
    """Return a group as JSON, exact to the last bit."""
    of_samples = {
        "lengths_G": np.array([len(sample.tokens) for sample in group.samples], np.int32),
        "ended_G": np.array([sample.ended for sample in group.samples]),
        "complete_G": np.array([sample.is_complete for sample in group.samples]),
        "tokens_T": np.array([token for sample in group.samples for token in sample.tokens], np.int32),
        "logps_T": np.array([logp for sample in group.samples for logp in sample.logps], np.float32),
        "versions_T": np.array([version for sample in group.samples for version in sample.versions], np.int32),
    }
    return {"number": group.number, **{name: batch_json.encode(x) for name, x in of_samples.items()}}


def from_json(entry: Mapping[str, Any], question: Question) -> UnfinishedGroup:
    """Return the group that `to_json` wrote. question: of the entry's number."""
    of = {name: batch_json.decode(x) for name, x in entry.items() if name != "number"}
    ends = np.cumsum(of["lengths_G"])[:-1]
    parts = (np.split(of[name], ends) for name in ("tokens_T", "logps_T", "versions_T"))
    samples = [
        PartialSample(tokens.tolist(), logps.tolist(), versions.tolist(), bool(ended), bool(is_complete))
        for tokens, logps, versions, ended, is_complete in zip(*parts, of["ended_G"], of["complete_G"], strict=True)
    ]
    return UnfinishedGroup(int(entry["number"]), question, samples)
