"""Losses per token, and the only way through the head: log-probs in chunks."""
