"""Speculative decoding: guessed tokens, verified in one pass."""
