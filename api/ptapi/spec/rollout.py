"""How completions are sampled during reinforcement learning and evaluation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import Fraction, NonNegativeInt, PositiveInt, SpecModel

StopString = Annotated[str, Field(min_length=1, max_length=256)]


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
    engine: Literal["native", "vllm"] = "native"
    """`native` runs the training model itself; `vllm` a server of its own."""
    placement: Literal["colocated", "disaggregated"] = "colocated"
    """Sample on the chips that train, or on others."""
    sampler_share: Fraction | None = None
    """Share of chips (or slices) that sample, when disaggregated."""
    max_staleness: NonNegativeInt = 0
    """Oldest weights, in optimizer steps, that a sample may come from; 0 is fully on-policy."""
