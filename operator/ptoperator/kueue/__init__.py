"""Kueue: what a queued job waits for, and the answer to its admission check."""
