"""Embeddings per layer: what every layer is given of each token beside the stream."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerEmbeddings:
    """A second table, whose rows hold a vector for each layer.

    size: of a layer's vector; vocab_size: rows of the table.
    """

    size: int
    vocab_size: int
