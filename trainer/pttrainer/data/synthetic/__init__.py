"""Data generated from a seed, for demos, tests and benchmarks."""
