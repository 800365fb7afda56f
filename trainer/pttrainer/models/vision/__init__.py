"""Vision towers: images to the embeddings of tokens."""
