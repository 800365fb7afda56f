"""Rotary position embeddings of a model: base, scaling of frequencies, which share of a head turns."""

from __future__ import annotations

from dataclasses import dataclass, replace


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


@dataclass(frozen=True)
class LongRopeScaling:
    """LongRoPE (arXiv 2402.13753): each pair's frequency divided by a factor of its own.

    short, long: the factors of sequences up to original_max_positions, and of longer ones. is_long: which of them count
    (`Rope.at_length`). attention_factor: multiplies cosine and sine of both.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_max_positions: int
    attention_factor: float
    is_long: bool = False


Scaling = LinearScaling | Llama3Scaling | YarnScaling | ProportionalScaling | LongRopeScaling


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

    @property
    def depends_on_length(self) -> bool:
        """Return True if sequences of different lengths turn differently."""
        return isinstance(self.scaling, LongRopeScaling)

    def at_length(self, length: int) -> Rope:
        """Return the embedding of sequences of this many tokens, which is another one where a scaling depends on it."""
        if not isinstance(self.scaling, LongRopeScaling):
            return self
        return replace(self, scaling=replace(self.scaling, is_long=length > self.scaling.original_max_positions))
