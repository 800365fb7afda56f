"""Rollouts: how completions are sampled, what they happen in, and what they are worth."""
