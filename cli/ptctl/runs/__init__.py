"""Runs: their logs, metrics, samples, ranks and links."""
