"""How a `config.json` is read: keys by type, those that families share, rotary embeddings, images, what is unknown."""
