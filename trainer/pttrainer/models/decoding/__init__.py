"""Decoding with a cache, as in sampling."""
