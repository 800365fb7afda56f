"""The number of tokens that go through the output head at once (`chunking`): arithmetic alone.

Letters: B rows, T tokens, V vocabulary, D model.
"""

CHUNK_ELEMENTS, CHUNK_TOKENS = 2**22, 128
"""On a CPU 16 MB of logits: smaller chunks make thin products, larger ones only cost memory. Or 128 tokens, where words
are many: every chunk reads the head and reads and writes the sum of its gradient."""
ACCELERATOR_ELEMENTS, ACCELERATOR_TOKENS = 2**26, 512
"""On a TPU or GPU, per device: a product of the head must serve hundreds of tokens, or reading the head takes longer
than computing (a v6e computes 560 operations in the time of reading a byte); at most 256 MB."""
LARGE_ELEMENTS, LARGE_TOKENS = 2**28, 2048
"""Where a device has many tokens: every chunk reads and writes the sum of the head's gradient, so a few large ones
are faster. At most 1 GB."""
LARGE_WIDTHS = 3
"""A large chunk's logits are at most so many times the numbers of the stream between layers: so they take less memory
than a layer's backward pass does, which holds the feed-forward part's, some four times the stream's, more than once."""

WIDTH_SHARE = 2
"""Where the embedding is the head, a chunk may have as many tokens as half of the model's width, on a device with few
tokens, too: its logits then take half of what the sum of the head's gradient does. Small models with many
words need it: of Gemma 3 4B on a v6e, in chunks of 256 tokens, that sum takes a sixth of the step."""


def largest_chunk(
    B: int, T: int, V: int, devices: int, platform: str, D: int = 0, *, sums_embedding: bool = False
) -> int:
    """Return tokens per row and chunk, for split rows: a power of two, so that few lengths leave a rest.

    D: of the model, where a chunk's gradients are computed with its logits at hand; else 0, for no large chunks.
    sums_embedding: the head is the embedding, and trained.
    """
    each = max(CHUNK_ELEMENTS, CHUNK_TOKENS * V)
    if platform != "cpu":
        large = min(LARGE_ELEMENTS, LARGE_TOKENS * V, LARGE_WIDTHS * D * B * T // devices)
        if sums_embedding:
            large = max(large, min(LARGE_TOKENS, D // WIDTH_SHARE) * V)
        each = max(min(ACCELERATOR_ELEMENTS, ACCELERATOR_TOKENS * V), large)
    size = 1
    while size * 2 <= T and size * 2 * B * V <= each * devices:
        size *= 2
    return size
