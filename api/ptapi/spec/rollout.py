"""How completions are sampled during reinforcement learning and evaluation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import Fraction, ModelUri, NonNegativeInt, PositiveInt, SpecModel

StopString = Annotated[str, Field(min_length=1, max_length=256)]
Proposals = Annotated[int, Field(ge=1, le=16)]


class NgramLookup(SpecModel):
    """Guesses that a completion goes on as its own text, prompt included, went on before: costs no model."""

    tokens: Proposals = 4
    """Tokens that are guessed for each pass of the model. 4: of longer runs the end seldom holds."""
    longest: Annotated[int, Field(ge=1, le=16)] = 4
    """Most of the newest tokens that are looked for in the text; the longest match counts."""


class DraftModel(SpecModel):
    """Guesses of a smaller model with the same tokenizer."""

    uri: ModelUri
    """Where the draft's weights are. They are not trained."""
    revision: Annotated[str, Field(max_length=1024)] | None = None
    """Branch, tag or commit of an `hf://` draft."""
    tokens: Proposals = 4
    """Tokens that are guessed for each pass of the model. 4: of longer runs the end seldom holds."""


class Speculative(SpecModel):
    """Speculative decoding: exactly one of these is set."""

    ngram: NgramLookup | None = None
    """Prompt lookup: for completions that repeat themselves or copy from the prompt."""
    draft: DraftModel | None = None
    """A draft model."""


class Rollout(SpecModel):
    """Sampling of completions."""

    max_new_tokens: PositiveInt = 512
    """Longest completion in tokens."""
    temperature: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0
    """Training samples at 1, so that the sampled policy is the trained one."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus sampling; 1 is off, because truncation renormalises on the sampler's side only."""
    top_k: NonNegativeInt = 0
    """Sample among the k likeliest; 0 is off, for the same reason."""
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Sample among tokens at least this share as likely as the likeliest; 0 is off, for the same reason."""
    min_new_tokens: NonNegativeInt = 0
    """No end token before so many tokens; 0 is off, because the trainer's distribution knows no such rule."""
    stop: Annotated[list[StopString], Field(max_length=16)] = []
    """Strings that end a completion, beside the model's end tokens; found wherever they fall between tokens."""
    slots: PositiveInt | None = None
    """Most completions sampled at once by the native engine; one that ends makes room for the next. The samples do not
    depend on it. Unset: what memory holds, at most 256 for each chip (64 on a CPU), because more are hardly faster."""
    speculative: Speculative | None = None
    """Guess some tokens and check them in one pass of the model; the samples are the same. Unset: off, because it pays
    only where many guesses hold (`speculation/accepted_share`)."""
    engine: Literal["native", "vllm"] = "native"
    """`native` runs the training model itself; `vllm` a server of its own."""
    placement: Literal["colocated", "disaggregated"] = "colocated"
    """Sample on the chips that train, or on others."""
    sampler_share: Fraction | None = None
    """Share of chips (or slices) that sample, when disaggregated."""
    max_staleness: NonNegativeInt = 0
    """Oldest weights, in optimizer steps, that a sample may come from; 0 is fully on-policy."""
