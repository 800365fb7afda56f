"""Rewards from a language model behind an HTTP endpoint."""
