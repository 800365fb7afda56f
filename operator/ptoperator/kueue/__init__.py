"""Kueue: the state of a queued job, and the reply to its admission check."""
