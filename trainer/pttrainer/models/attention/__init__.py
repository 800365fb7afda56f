"""Attention: kernels, caches of keys and values, rotary embeddings."""
