"""Rotary position embeddings of a model: base, scaling of frequencies, which share of a head turns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LinearScaling:
    """All rotary frequencies divided by `factor` (position interpolation, arXiv 2306.15595)."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's change of the rotary frequencies: long wavelengths are stretched by `factor`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): slow frequencies interpolated, fast ones kept, a ramp between.

    attention_factor: multiplies cosine and sine, which sharpens attention over long contexts. truncate: round the
    ends of the ramp to whole frequencies.
    """

    factor: float
    original_max_positions: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True)
class ProportionalScaling:
    """Frequencies of the whole head, of which the slowest are 0: `turning` is the share of pairs that turn."""

    turning: float
    factor: float = 1.0


Scaling = LinearScaling | Llama3Scaling | YarnScaling | ProportionalScaling


@dataclass(frozen=True)
class QueryScaling:
    """Queries far from the beginning are longer: times 1 + slope · ln(1 + ⌊(position + first) / period⌋)."""

    slope: float
    period: int
    first: int = 0


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: base, and the scaling of its frequencies for longer contexts.

    share: of a head's elements, the first ones, that turn; 0 for none. query_scaling: of queries by position.
    """

    theta: float
    scaling: Scaling | None = None
    share: float = 1.0
    query_scaling: QueryScaling | None = None
