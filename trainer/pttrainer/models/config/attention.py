"""What a layer has in place of plain attention, and which tokens it sees."""

from dataclasses import dataclass

from pttrainer.errors import ConfigError

MAX_SCORES = 2**26
"""Scores of a layer that exist at once per device, without a fused kernel: 256 MB."""


def queries_at_once(queries: int, scores_each: int, most: int = MAX_SCORES) -> int:
    """Return how many queries of a row are scored at once: all if their scores fit, else repeatedly halved.

    scores_each: of a query, over all rows and heads. Where halves would be of different sizes, no fewer are taken.
    """
    block = queries
    while block % 2 == 0 and block * scores_each > most:
        block //= 2
    return block


@dataclass(frozen=True)
class Chunk:
    """A window that does not slide: a token sees those of its own chunk of positions, up to itself."""

    size: int


Window = int | Chunk | None
"""Which tokens a layer sees: so many, the query's own included, those of a chunk, or all."""


@dataclass(frozen=True)
class GlobalHeads:
    """What global layers have in place of the heads of local ones.

    values_are_keys: a value is its key before norm and rotation, and has no matrix of its own.
    """

    kv_heads: int
    head_dim: int
    values_are_keys: bool = False


@dataclass(frozen=True)
class Indexer:
    """What chooses the tokens that a query sees (sparse attention of DeepSeek V3.2, arXiv 2512.02556).

    heads, head_dim: of its own queries; keep: tokens that a query sees at most. interleaved: pairs that turn are stored
    side by side. shared: these layers have none, and see what the last one before them chose (arXiv 2603.12201).
    """

    heads: int
    head_dim: int
    keep: int
    interleaved: bool = False
    shared: bool = False


@dataclass(frozen=True)
class Latent:
    """Attention whose keys and values come from one vector per token (arXiv 2405.04434).

    rank: elements of that vector; query_rank: of the one that queries come from, None for none. rotary: last elements
    of a head that turn; in keys all heads share them. value_dim: elements of a head's value. interleaved: pairs that
    turn are stored side by side. indexer: what chooses the tokens that a query sees; None if it sees all.
    """

    rank: int
    query_rank: int | None
    rotary: int
    value_dim: int
    interleaved: bool = True
    indexer: Indexer | None = None

    @property
    def own_indexer(self) -> Indexer | None:
        """Return the indexer that these layers have themselves."""
        return None if self.indexer is None or self.indexer.shared else self.indexer

    @property
    def stored(self) -> int:
        """Return the elements that a cache has of each token."""
        return self.rank + self.rotary + (0 if self.own_indexer is None else self.own_indexer.head_dim)


@dataclass(frozen=True)
class Delta:
    """Layers with a gated delta rule in place of attention (arXiv 2412.06464).

    key_dim, value_dim: elements of a head's key and value; value_heads: a multiple of key_heads. width: tokens that the
    convolution before it sees. by_head: one matrix holds a key head's part of queries, keys, values and gates together.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    width: int
    by_head: bool = False

    def __post_init__(self) -> None:
        if self.value_heads % self.key_heads:
            raise ConfigError(
                f"config.json linear_num_value_heads: {self.value_heads}: accepted: a multiple of linear_num_key_heads "
                f"({self.key_heads})"
            )

    @property
    def channels(self) -> int:
        """Return the elements that are convolved: queries, keys and values of all heads."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state_size(self) -> int:
        """Return the elements of a row's state."""
        return self.value_heads * self.key_dim * self.value_dim
